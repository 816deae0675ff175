/* Looks into another process through /proc: its root, directory, program, environment, memory and descriptors.
 * Argument 1 is the process, 1 (the sandbox's init) unless given. Only reads. */
#include "guest.h"
#include <dirent.h>

int main(int argc, char **argv)
{
    const char *links[] = {"root", "cwd", "exe", "ns/mnt", "ns/user", "ns/net"};
    const char *files[] = {"environ", "mem", "maps", "smaps", "auxv", "stack", "syscall", "io", "pagemap", "mountstats",
                           "personality"};
    const char *directories[] = {"root/", "cwd/", "fd", "map_files"};
    long pid = number(argc, argv, 1, 1);
    char path[128], target[4096];

    snprintf(path, sizeof path, "/proc/%ld", pid);
    if (access(path, F_OK) != 0)
        contained("%s is not there", path);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, "/proc/%ld/%s", pid, links[i]);
        must_fail(path, readlink(path, target, sizeof target));
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/%ld/%s", pid, files[i]);
        ssize_t length = slurp(path, target, sizeof target);
        must_fail(path, length > 0 ? length : -1);
    }
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        snprintf(path, sizeof path, "/proc/%ld/%s", pid, directories[i]);
        DIR *stream = opendir(path);
        must_fail(path, stream == NULL ? -1 : dirfd(stream));
    }
    return verdict();
}

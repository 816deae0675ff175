/* CVE-2024-21626, CVE-2016-9962: a descriptor of the host that was left open leads out, most of all one of a directory. */
#include "guest.h"
#include <dirent.h>

static void climb(const char *how, int (*enter)(int), int fd)
{
    struct stat here, root;
    char cwd[4096];
    if (enter(fd) != 0)
        return;
    attempts++;
    for (int i = 0; i < 64; i++)
        if (chdir("..") != 0)
            break;
    if (stat(".", &here) == 0 && stat("/", &root) == 0 && (here.st_ino != root.st_ino || here.st_dev != root.st_dev))
        escape_found("%s %d and '..' lead above the root", how, fd);
    if (getcwd(cwd, sizeof cwd) == NULL || cwd[0] != '/')
        escape_found("%s %d leads to a directory outside the root", how, fd);
}

static int by_path(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return chdir(path);
}

static int stay(int fd)
{
    (void)fd;
    return 0;
}

int main(void)
{
    char path[64], target[4096];
    for (int fd = 0; fd < 65536; fd++) {
        struct stat info;
        if (fcntl(fd, F_GETFD) == -1)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = '\0';
        attempts++;
        if (fd > 2)
            escape_found("descriptor %d is open: %s", fd, target);
        else if (fstat(fd, &info) == 0 && (S_ISDIR(info.st_mode) || S_ISBLK(info.st_mode)))
            escape_found("descriptor %d is a directory or disk: %s", fd, target);
    }
    climb("the working directory", stay, 0);
    for (int fd = 0; fd < 64; fd++) {
        climb("fchdir", fchdir, fd);
        climb("/proc/self/fd/", by_path, fd);
    }
    return verdict();
}

/* Makes a lasting name inside the workspace for a file outside it, by hard link, by a link of an open descriptor, or by
 * moving it. Arguments: the workspace, then host files. */
#include "guest.h"

static void attack(const char *workspace, const char *file)
{
    char name[512], link_of_fd[64];
    snprintf(name, sizeof name, "%s/linked", workspace);
    must_fail("link", link(file, name));
    must_fail("linkat following links", linkat(AT_FDCWD, file, AT_FDCWD, name, AT_SYMLINK_FOLLOW));
    must_fail("rename into the workspace", rename(file, name));
    int fd = open(file, O_PATH);
    if (fd >= 0) {
        snprintf(link_of_fd, sizeof link_of_fd, "/proc/self/fd/%d", fd);
        must_fail("linkat of a descriptor", linkat(fd, "", AT_FDCWD, name, AT_EMPTY_PATH));
        must_fail("linkat through /proc", linkat(AT_FDCWD, link_of_fd, AT_FDCWD, name, AT_SYMLINK_FOLLOW));
        close(fd);
    }
}

int main(int argc, char **argv)
{
    const char *files[] = {"/usr/bin/env", "/etc/passwd", "/proc/1/exe", "/dev/null"};
    const char *workspace = argc > 1 ? argv[1] : "/workspace";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        attack(workspace, files[i]);
    for (int i = 2; i < argc; i++)
        attack(workspace, argv[i]);
    return verdict();
}

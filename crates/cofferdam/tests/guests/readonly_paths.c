/* Changes what the sandbox mounts read-only: the root, programs, libraries, configuration, the script directory. Arguments are
 * further directories that must be read-only. */
#include "guest.h"
#include <sys/xattr.h>
#include <utime.h>

static void spoil_directory(const char *directory)
{
    char path[512], other[512];
    snprintf(path, sizeof path, "%s/.hostile", directory);
    snprintf(other, sizeof other, "%s/.hostile2", directory);
    must_fail(path, open(path, O_CREAT | O_WRONLY | O_EXCL, 0644));
    must_fail("O_TMPFILE", open(directory, O_TMPFILE | O_RDWR, 0644));
    must_fail("mkdir", mkdir(other, 0755));
    must_fail("symlink", symlink("x", other));
    must_fail("mkfifo", mkfifo(other, 0644));
    must_fail("chmod of a directory", chmod(directory, 0777));
    must_fail("rename of a directory", rename(directory, "/tmp/hostile-renamed"));
    must_fail("rmdir", rmdir(directory));
}

static void spoil_file(const char *file)
{
    if (access(file, F_OK) != 0)
        return;
    must_fail(file, open(file, O_WRONLY));
    must_fail("open to truncate", open(file, O_RDWR | O_TRUNC));
    must_fail("truncate", truncate(file, 0));
    must_fail("chmod", chmod(file, 04777));
    must_fail("chown", chown(file, getuid(), getgid()));
    must_fail("utime", utime(file, NULL));
    must_fail("setxattr", setxattr(file, "user.hostile", "x", 1, 0));
    must_fail("unlink", unlink(file));
    must_fail("rename", rename(file, "/tmp/hostile-renamed"));
}

int main(int argc, char **argv)
{
    const char *directories[] = {"/", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/bin", "/lib", "/sbin", "/etc", "/code",
                                 "/proc", "/proc/self", "/proc/sys/kernel", "/sys", "/dev", "/run", "/var", "/var/tmp",
                                 "/opt", "/home", "/root", "/srv", "/mnt"};
    const char *files[] = {"/usr/bin/env", "/bin/sh", "/usr/bin/python3", "/etc/passwd", "/etc/group", "/etc/hosts",
                           "/etc/resolv.conf", "/etc/ld.so.cache", "/etc/nsswitch.conf", "/lib64/ld-linux-x86-64.so.2",
                           "/lib/ld-linux-aarch64.so.1"};
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        spoil_directory(directories[i]);
    for (int i = 1; i < argc; i++)
        spoil_directory(argv[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        spoil_file(files[i]);
    return verdict();
}

/* Creates a set-uid or set-gid program for a user outside to run: by chmod, by the mode of a new file, by every variant of
 * those calls. Argument 1 is a writable directory. */
#include "guest.h"

static const char *directory;

static void check(const char *how, int fd)
{
    struct stat info;
    char path[512];
    snprintf(path, sizeof path, "%s/bit", directory);
    attempts++;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & (S_ISUID | S_ISGID)) != 0)
        escape_found("%s made a file of mode %o", how, info.st_mode & 07777);
    else
        dprintf(1, "no bit after %s\n", how);
    if (fd >= 0)
        close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    const mode_t bits[] = {04755, 02755, 06755};
    char path[512];
    directory = argc > 1 ? argv[1] : "/workspace";
    snprintf(path, sizeof path, "%s/bit", directory);
    umask(0);
    int probe = creat(path, 0644);
    if (probe < 0)
        could_not_try("%s: %s", path, strerror(errno));
    close(probe);
    unlink(path);
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        struct { uint64_t flags, mode, resolve; } how = {O_CREAT | O_WRONLY, bits[i], 0};
        const int plain = O_CREAT | O_WRONLY;
        check("open", open(path, plain, bits[i]));
#ifdef SYS_open
        check("the old open", (int)syscall(SYS_open, path, plain, bits[i]));
        check("the old creat", (int)syscall(SYS_creat, path, bits[i]));
        syscall(SYS_mknod, path, S_IFREG | bits[i], 0);
        check("the old mknod", -1);
#endif
        check("openat2", (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
        mknodat(AT_FDCWD, path, S_IFREG | bits[i], 0);
        check("mknodat", -1);

        close(creat(path, 0644));
        chmod(path, bits[i]);
        check("chmod", -1);
#ifdef SYS_chmod
        close(creat(path, 0644));
        syscall(SYS_chmod, path, bits[i]);
        check("the old chmod", -1);
#endif
        close(creat(path, 0644));
        syscall(SYS_fchmodat, AT_FDCWD, path, bits[i]);
        check("fchmodat", -1);
        close(creat(path, 0644));
        syscall(SYS_fchmodat2, AT_FDCWD, path, bits[i], 0);
        check("fchmodat2", -1);
        int fd = creat(path, 0644);
        fchmod(fd, bits[i]);
        check("fchmod", fd);
        /* Bits above those the kernel reads must not hide the one that counts. */
        close(creat(path, 0644));
        syscall(SYS_fchmodat, AT_FDCWD, path, (1UL << 32) | bits[i]);
        check("fchmodat with high bits", -1);
        fd = (int)syscall(SYS_openat, AT_FDCWD, directory, O_TMPFILE | O_RDWR, bits[i]);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        char target[512];
        snprintf(target, sizeof target, "%s/bit", directory);
        if (fd >= 0)
            (void)!linkat(AT_FDCWD, path, AT_FDCWD, target, AT_SYMLINK_FOLLOW);
        strcpy(path, target);
        check("O_TMPFILE and a link", fd);
    }
    return verdict();
}

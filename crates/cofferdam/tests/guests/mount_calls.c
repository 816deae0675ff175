/* CVE-2021-41133: changes the mounts it sees, by the old calls and by the new ones that filters have forgotten. */
#include "guest.h"
#include <sys/mount.h>

struct mount_attributes {
    uint64_t set, clear, propagation, userns;
};

int main(void)
{
    const char *targets[] = {"/", "/usr", "/proc", "/proc/sys", "/dev", "/etc", "/workspace", "/tmp", "/dev/shm", "/code"};
    const char *kinds[] = {"tmpfs", "proc", "sysfs", "cgroup2", "cgroup", "devpts", "mqueue", "overlay", "fuse", "ext4", "debugfs"};
    struct mount_attributes writable = {.clear = 1 /* MOUNT_ATTR_RDONLY */}, own = {.propagation = MS_PRIVATE};

    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        dprintf(1, "%s\n", targets[i]);
        MUST_FAIL(mount(NULL, targets[i], NULL, MS_REMOUNT, NULL));
        MUST_FAIL(mount(NULL, targets[i], NULL, MS_REMOUNT | MS_BIND, NULL));
        MUST_FAIL(mount(NULL, targets[i], NULL, MS_REC | MS_SHARED, NULL));
        MUST_FAIL(mount("/tmp", targets[i], NULL, MS_BIND | MS_REC, NULL));
        MUST_FAIL(mount(targets[i], "/tmp", NULL, MS_MOVE, NULL));
        MUST_FAIL(umount2(targets[i], MNT_DETACH));
        MUST_BE_FILTERED(syscall(SYS_mount_setattr, AT_FDCWD, targets[i], 0x8000 /* AT_RECURSIVE */, &writable, sizeof writable));
        MUST_BE_FILTERED(syscall(SYS_mount_setattr, AT_FDCWD, targets[i], 0, &own, sizeof own));
        MUST_BE_FILTERED(syscall(SYS_open_tree, AT_FDCWD, targets[i], 1 /* OPEN_TREE_CLONE */));
        MUST_BE_FILTERED(syscall(SYS_fspick, AT_FDCWD, targets[i], 0));
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        dprintf(1, "%s\n", kinds[i]);
        MUST_FAIL(mount("none", "/tmp", kinds[i], 0, NULL));
        MUST_BE_FILTERED(syscall(SYS_fsopen, kinds[i], 0));
    }
    MUST_BE_FILTERED(syscall(SYS_move_mount, AT_FDCWD, "/tmp", AT_FDCWD, "/workspace", 0));
    MUST_BE_FILTERED(syscall(SYS_fsconfig, -1, 6, NULL, NULL, 0));
    MUST_BE_FILTERED(syscall(SYS_fsmount, -1, 0, 0));
    MUST_BE_FILTERED(syscall(SYS_pivot_root, "/tmp", "/tmp"));
    MUST_BE_FILTERED(chroot("/tmp"));
    MUST_BE_FILTERED(chroot("/"));
    return verdict();
}

/* Looks for device files that reach the host's hardware, and tries to make its own. */
#include "guest.h"
#include <ftw.h>
#include <sys/sysmacros.h>

static int harmless(dev_t device)
{
    unsigned type = major(device), which = minor(device);
    return (type == 1 && (which == 3 || which == 5 || which == 7 || which == 8 || which == 9)) ||
           (type == 5 && (which == 0 || which == 1 || which == 2)) || (type >= 136 && type <= 143);
}

static int visit(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)kind;
    (void)where;
    attempts++;
    if (S_ISBLK(info->st_mode) || (S_ISCHR(info->st_mode) && !harmless(info->st_rdev)))
        escape_found("device %s (%u:%u)", path, major(info->st_rdev), minor(info->st_rdev));
    if (S_ISSOCK(info->st_mode))
        escape_found("socket %s", path);
    return 0;
}

int main(void)
{
    const char *places[] = {"/workspace", "/tmp", "/dev/shm", "/dev", "."};
    char path[128];
    nftw("/dev", visit, 16, FTW_PHYS | FTW_MOUNT);
    nftw("/dev/shm", visit, 16, FTW_PHYS);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s/node-c", places[i]);
        must_fail("mknod of the memory device", mknod(path, S_IFCHR | 0666, makedev(1, 1)));
        snprintf(path, sizeof path, "%s/node-n", places[i]);
        must_fail("mknod of the null device", mknod(path, S_IFCHR | 0666, makedev(1, 3)));
        snprintf(path, sizeof path, "%s/node-b", places[i]);
        must_fail("mknod of a disk", mknod(path, S_IFBLK | 0666, makedev(8, 0)));
        snprintf(path, sizeof path, "%s/node-0", places[i]);
        /* An overlayfs whiteout, which newer kernels let anyone make, is no device. */
        if (mknod(path, S_IFCHR | 0666, makedev(0, 0)) == 0 && open(path, O_RDWR) >= 0)
            escape_found("opened device 0:0");
    }
    return verdict();
}

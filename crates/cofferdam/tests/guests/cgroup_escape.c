/* CVE-2022-0492: leaves or loosens its control group: a mount of its own, a release agent, cgroup.procs, any file below
 * /sys/fs/cgroup that opens for writing. */
#include "guest.h"
#include <ftw.h>
#include <sys/mount.h>

static int visit(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)where;
    attempts++;
    if (kind == FTW_F) {
        int fd = open(path, O_WRONLY);
        if (fd >= 0)
            escape_found("%s opens for writing", path);
        if (fd >= 0)
            close(fd);
    }
    return 0;
}

int main(void)
{
    const char *options[] = {"memory", "pids", "cpu", "rdma", "freezer", "none,name=hostile"};
    mkdir("/tmp/cgroup", 0755);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        must_fail(options[i], mount("cgroup", "/tmp/cgroup", "cgroup", 0, options[i]));
    must_fail("cgroup2", mount("cgroup2", "/tmp/cgroup", "cgroup2", 0, NULL));
    must_fail("mkdir of a group", mkdir("/sys/fs/cgroup/hostile", 0755));
    must_fail("mkdir of a memory group", mkdir("/sys/fs/cgroup/memory/hostile", 0755));
    must_fail("release_agent", open("/sys/fs/cgroup/release_agent", O_WRONLY));
    nftw("/sys/fs/cgroup", visit, 32, FTW_PHYS);
    nftw("/tmp/cgroup", visit, 32, FTW_PHYS);
    return verdict();
}

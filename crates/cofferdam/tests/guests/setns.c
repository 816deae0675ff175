/* Enters another namespace: those of init, its own again, a parent's by ioctl, the process given as argument 1. */
#include "guest.h"
#include <sched.h>
#include <sys/ioctl.h>

#define NS_GET_PARENT 0xb702

static void attack(const char *process)
{
    const char *kinds[] = {"user", "mnt", "pid", "pid_for_children", "net", "ipc", "uts", "cgroup", "time", "time_for_children"};
    char path[64];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "/proc/%s/ns/%s", process, kinds[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        must_fail(path, fd < 0 ? -1 : setns(fd, 0));
        must_fail("its parent", fd < 0 ? -1 : ioctl(fd, NS_GET_PARENT));
        if (fd >= 0)
            close(fd);
    }
}

int main(int argc, char **argv)
{
    attack("1");
    attack("self");
    for (int i = 1; i < argc; i++)
        attack(argv[i]);
    long handle = syscall(SYS_pidfd_open, 1, 0);
    MUST_FAIL(handle < 0 ? -1 : setns((int)handle, CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID));
    return verdict();
}

/* Makes new namespaces, above all a user namespace: the door to most kernel bugs of the last years (CVE-2022-0185). By
 * unshare, clone and clone3, each kind alone and with a user namespace. Affects only this program. */
#include "guest.h"
#include <sched.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

struct clone_request {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static long reap(long pid)
{
    if (pid == 0)
        _exit(0);
    int error = errno;
    if (pid > 0)
        waitpid((pid_t)pid, NULL, 0);
    errno = error;
    return pid;
}

static long old_clone(unsigned long flags)
{
    return reap(syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, 0UL));
}

static long new_clone(unsigned long flags)
{
    struct clone_request request = {.flags = flags, .exit_signal = SIGCHLD};
    return reap(syscall(SYS_clone3, &request, sizeof request));
}

int main(void)
{
    const struct {
        const char *name;
        unsigned long flag;
    } kinds[] = {{"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID},         {"net", CLONE_NEWNET},
                 {"ipc", CLONE_NEWIPC},   {"uts", CLONE_NEWUTS},  {"cgroup", CLONE_NEWCGROUP}, {"time", CLONE_NEWTIME}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        dprintf(1, "%s\n", kinds[i].name);
        if (kinds[i].flag != CLONE_NEWTIME)
            MUST_FAIL(old_clone(kinds[i].flag));
        MUST_FAIL(new_clone(kinds[i].flag));
        MUST_FAIL(old_clone(kinds[i].flag | CLONE_NEWUSER));
        MUST_FAIL(new_clone(kinds[i].flag | CLONE_NEWUSER));
        MUST_FAIL(unshare((int)kinds[i].flag));
        MUST_FAIL(unshare((int)kinds[i].flag | CLONE_NEWUSER));
    }
    /* Flags above 32 bits exist only in clone3; below them garbage must not hide a namespace. */
    MUST_FAIL(old_clone(CLONE_NEWUSER | (1UL << 40)));
    return verdict();
}

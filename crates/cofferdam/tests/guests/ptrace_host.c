/* Reads, writes or steals from processes outside: the sandbox's init and a process of the host (argument 1). */
#include "guest.h"
#include <sys/ptrace.h>
#include <sys/uio.h>

static void attack(int victim)
{
    char buffer[64];
    struct iovec here = {buffer, sizeof buffer}, there = {(void *)0x400000, sizeof buffer};
    char path[64];

    dprintf(1, "process %d\n", victim);
    MUST_FAIL(syscall(SYS_process_vm_readv, victim, &here, 1, &there, 1, 0));
    MUST_FAIL(syscall(SYS_kcmp, getpid(), victim, 0 /* KCMP_FILE */, 0, 0));
    MUST_FAIL(syscall(SYS_move_pages, victim, 0, NULL, NULL, NULL, 0));
    long handle = syscall(SYS_pidfd_open, victim, 0);
    for (int fd = 0; handle >= 0 && fd < 8; fd++)
        MUST_FAIL(syscall(SYS_pidfd_getfd, handle, fd, 0));
    if (handle >= 0)
        MUST_FAIL(syscall(SYS_process_madvise, handle, &there, 1, 20 /* MADV_COLD */, 0));
    snprintf(path, sizeof path, "/proc/%d/mem", victim);
    MUST_FAIL(open(path, O_RDWR));
    long traced = ptrace(PTRACE_SEIZE, victim, NULL, NULL);
    must_fail("ptrace seize", traced);
    if (traced == 0) {
        ptrace(PTRACE_INTERRUPT, victim, NULL, NULL);
        waitpid(victim, NULL, __WALL);
        ptrace(PTRACE_DETACH, victim, NULL, NULL);
    } else {
        MUST_FAIL(ptrace(PTRACE_ATTACH, victim, NULL, NULL));
    }
}

int main(int argc, char **argv)
{
    int victim = (int)number(argc, argv, 1, 0);
    if (victim > 1)
        attack(victim);
    if (escapes == 0)
        attack(1);
    return verdict();
}

/* Lets a child of its own make a harmless call and changes it, as its tracer, into a forbidden one after the filter has
 * seen the harmless one (how seccomp worked before Linux 4.8). */
#include "guest.h"
#ifdef __x86_64__
#include <sys/ptrace.h>
#include <sys/user.h>
#include <stddef.h>

static void child(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(9);
    raise(SIGSTOP);
    /* unshare takes its flags from here: a new user namespace. */
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_getppid), "D"(0x10000000L) : "rcx", "r11", "memory");
    _exit(result == 0 ? 7 : 8);
}

int main(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        child();
    if (pid < 0)
        could_not_try("fork: %s", strerror(errno));
    waitpid(pid, &status, 0);
    if (WIFEXITED(status))
        contained("a child cannot be traced");
    ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        struct user_regs_struct registers;
        if (WSTOPSIG(status) == SIGSYS)
            break;
        if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) == 0 && registers.orig_rax == SYS_getppid)
            ptrace(PTRACE_POKEUSER, pid, offsetof(struct user_regs_struct, orig_rax), (long)SYS_unshare);
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
        escaped("a tracer changed a call after the filter");
    kill(pid, SIGKILL);
    contained("the changed call was refused (status %x)", status);
}
#else
int main(void)
{
    could_not_try("written for x86_64");
}
#endif

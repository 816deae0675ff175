/* System calls by another door than the filter's own architecture: i386's int 0x80, x32. A filter that does not look at
 * the architecture reads their numbers as others. Each try runs in a child, which the filter may kill. */
#include "guest.h"
#ifdef __x86_64__

static long int80(long call, long first)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(call), "b"(first) : "r8", "r9", "r10", "r11", "memory", "cc");
    return (int)result;
}

static long i386_getpid(void)
{
    return int80(20, 0);
}

static long i386_unshare(void)
{
    return int80(310, 0x10000000);
}

static long i386_mount(void)
{
    /* An address that cannot be read: reaching the kernel shows as EFAULT. */
    return int80(21, 1) == -EFAULT ? 1 : -1;
}

static long x32_getpid(void)
{
    return syscall(0x40000000 | SYS_getpid);
}

static long x32_ptrace(void)
{
    return syscall(0x40000000 | 521, 0 /* PTRACE_TRACEME */, 0, 0, 0);
}

static long x32_high(void)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(0xffffffff40000000L | SYS_getpid) : "rcx", "r11", "memory");
    return result;
}

static void attack(const char *name, long (*call)(void))
{
    int status = 0;
    attempts++;
    pid_t pid = fork();
    if (pid == 0)
        _exit(call() >= 0 ? 7 : 8);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        could_not_try("fork: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
        escape_found("%s was answered", name);
    else if (WIFSIGNALED(status))
        dprintf(1, "%s: killed by signal %d\n", name, WTERMSIG(status));
    else
        dprintf(1, "%s: refused\n", name);
}

int main(void)
{
    attack("int 0x80 getpid", i386_getpid);
    attack("int 0x80 unshare", i386_unshare);
    attack("int 0x80 mount", i386_mount);
    attack("x32 getpid", x32_getpid);
    attack("x32 ptrace", x32_ptrace);
    attack("x32 with high bits", x32_high);
    return verdict();
}
#else
int main(void)
{
    could_not_try("written for x86_64");
}
#endif

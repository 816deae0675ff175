/* Signals a process of the host (argument 1: its number there) in every way the kernel offers. The harness watches
 * whether that process lives on. */
#include "guest.h"

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

int main(int argc, char **argv)
{
    int victim = (int)number(argc, argv, 1, 0);
    siginfo_t info = {.si_code = SI_QUEUE};
    if (victim <= 1)
        could_not_try("no process given");
    MUST_FAIL(kill(victim, SIGKILL));
    MUST_FAIL(kill(-victim, SIGKILL));
    MUST_FAIL(syscall(SYS_tkill, victim, SIGKILL));
    MUST_FAIL(syscall(SYS_tgkill, victim, victim, SIGKILL));
    MUST_FAIL(syscall(SYS_rt_sigqueueinfo, victim, SIGKILL, &info));
    long handle = syscall(SYS_pidfd_open, victim, 0);
    must_fail("pidfd_open", handle);
    if (handle >= 0)
        MUST_FAIL(syscall(SYS_pidfd_send_signal, handle, SIGKILL, NULL, 0));
    /* A descriptor that signals its owner when data comes. */
    int ends[2];
    if (pipe(ends) == 0) {
        must_fail("F_SETOWN", fcntl(ends[0], F_SETOWN, victim));
        fcntl(ends[0], F_SETSIG, SIGKILL);
        fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK);
        (void)!write(ends[1], "x", 1);
    }
    return verdict();
}

/* userfaultfd: stops the kernel in the middle of a copy, which makes races in it easy to win. */
#include "guest.h"

int main(void)
{
    MUST_BE_FILTERED(syscall(SYS_userfaultfd, O_CLOEXEC));
    MUST_BE_FILTERED(syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* user mode only */));
    MUST_FAIL(open("/dev/userfaultfd", O_RDWR));
    return verdict();
}

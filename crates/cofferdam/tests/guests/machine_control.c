/* Steers the whole machine: reboot, swap, accounting, quotas, ports, the kernel's log, the terminal of others. */
#include "guest.h"
#include <sys/reboot.h>

int main(void)
{
    /* Turning Ctrl-Alt-Del off is the mildest request; real powers are not asked for even here. */
    MUST_BE_FILTERED(reboot(RB_DISABLE_CAD));
    MUST_BE_FILTERED(syscall(SYS_swapon, "/tmp/hostile-none", 0));
    MUST_BE_FILTERED(syscall(SYS_swapoff, "/tmp/hostile-none"));
    MUST_BE_FILTERED(syscall(SYS_acct, "/tmp/hostile-none"));
    MUST_BE_FILTERED(syscall(SYS_quotactl, 0, NULL, 0, NULL));
    MUST_BE_FILTERED(syscall(SYS_syslog, 3, NULL, 0));
    MUST_BE_FILTERED(syscall(SYS_vhangup));
#ifdef SYS_iopl
    MUST_BE_FILTERED(syscall(SYS_iopl, 3));
    MUST_BE_FILTERED(syscall(SYS_ioperm, 0x80UL, 1UL, 1));
#endif
    return verdict();
}

/* Replaces or extends the kernel: modules, kexec. The arguments could not work even with the right to do so. */
#include "guest.h"

int main(void)
{
    MUST_BE_FILTERED(syscall(SYS_init_module, "", 0UL, ""));
    MUST_BE_FILTERED(syscall(SYS_finit_module, -1, "", 0));
    MUST_BE_FILTERED(syscall(SYS_delete_module, "hostile_no_such_module", O_NONBLOCK));
    MUST_BE_FILTERED(syscall(SYS_kexec_load, 0UL, 0UL, NULL, ~0UL));
#ifdef SYS_kexec_file_load
    MUST_BE_FILTERED(syscall(SYS_kexec_file_load, -1, -1, 0UL, NULL, ~0UL));
#endif
    return verdict();
}

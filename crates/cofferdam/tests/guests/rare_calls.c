/* Calls that ordinary programs do not make and that have been used against kernels or neighbours. */
#include "guest.h"

int main(void)
{
    char buffer[64];
#ifdef SYS_modify_ldt
    MUST_BE_FILTERED(syscall(SYS_modify_ldt, 0, buffer, sizeof buffer));
    MUST_BE_FILTERED(syscall(SYS_uselib, "/tmp/hostile-none"));
    MUST_BE_FILTERED(syscall(SYS_sysfs, 3));
    MUST_BE_FILTERED(syscall(SYS_ustat, 0UL, buffer));
#endif
    MUST_BE_FILTERED(syscall(SYS_lookup_dcookie, 0UL, buffer, sizeof buffer));
    MUST_BE_FILTERED(syscall(SYS_nfsservctl, 0, NULL, NULL));
    MUST_BE_FILTERED(syscall(SYS_fanotify_init, 0, 0));
    MUST_BE_FILTERED(syscall(SYS_kcmp, getpid(), 1, 0, 0, 0));
    MUST_BE_FILTERED(syscall(SYS_move_pages, getpid(), 0UL, NULL, NULL, NULL, 0));
    MUST_BE_FILTERED(syscall(SYS_migrate_pages, getpid(), 0UL, NULL, NULL));
    MUST_BE_FILTERED(syscall(SYS_process_vm_writev, getpid(), NULL, 0UL, NULL, 0UL, 0UL));
    MUST_BE_FILTERED(syscall(SYS_memfd_secret, 0));
    MUST_BE_FILTERED(syscall(SYS_remap_file_pages, NULL, 0UL, 0, 0UL, 0));
    return verdict();
}

/* Opens for writing what steers the host's kernel: every file below /proc/sys (core_pattern, modprobe, ...),
 * sysrq-trigger, and the rest of /proc and /sys that a container runtime protects. Opens only, writes nothing. */
#include "guest.h"
#include <ftw.h>

static int visit(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)where;
    if (kind == FTW_F || kind == FTW_SL) {
        int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
        attempts++;
        if (fd >= 0) {
            struct stat opened;
            /* A masked file is the null device. */
            if (fstat(fd, &opened) == 0 && !S_ISCHR(opened.st_mode))
                escape_found("%s opens for writing", path);
            close(fd);
        }
    }
    return 0;
}

int main(void)
{
    const char *trees[] = {"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/driver", "/proc/scsi", "/proc/acpi",
                           "/sys/kernel", "/sys/module", "/sys/firmware", "/sys/power", "/sys/fs"};
    const char *files[] = {"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
                           "/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/panic_on_oom", "/proc/mtrr", "/proc/kcore",
                           "/proc/slabinfo", "/proc/timer_stats", "/proc/latency_stats", "/sys/kernel/uevent_helper",
                           "/sys/power/state", "/sys/kernel/mm/ksm/run", "/proc/self/../sys/kernel/core_pattern"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_WRONLY | O_NONBLOCK);
        struct stat info;
        attempts++;
        if (fd >= 0 && fstat(fd, &info) == 0 && !S_ISCHR(info.st_mode))
            escape_found("%s opens for writing", files[i]);
        if (fd >= 0)
            close(fd);
    }
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
        nftw(trees[i], visit, 16, FTW_PHYS);
    return verdict();
}

/* Reads what /proc and /sys tell of the whole machine: memory image, keys, kernel addresses, timers, logs. */
#include "guest.h"
#include <dirent.h>

static void must_be_empty(const char *path)
{
    char buffer[4096];
    attempts++;
    if (slurp(path, buffer, sizeof buffer) > 0)
        escape_found("%s can be read", path);
}

static void must_have_no_entry(const char *path)
{
    DIR *stream = opendir(path);
    attempts++;
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            escape_found("%s holds %s", path, entry->d_name);
            break;
        }
    if (stream != NULL)
        closedir(stream);
}

/* A file that anyone may read, whose addresses are zero for those without privilege. */
static void must_show_no_address(const char *path, int field)
{
    char line[1024], word[4][256] = {{0}};
    FILE *file = fopen(path, "r");
    attempts++;
    for (int i = 0; file != NULL && i < 200 && fgets(line, sizeof line, file) != NULL; i++) {
        const char *found = word[0];
        if (field == 0)
            sscanf(line, "%255s", word[0]);
        else
            found = strstr(line, "0x");
        if (found != NULL && strtoull(found, NULL, 16) != 0) {
            escape_found("%s shows kernel addresses", path);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
}

int main(void)
{
    const char *files[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug",
                           "/proc/latency_stats", "/proc/timer_stats", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup",
                           "/proc/vmallocinfo", "/proc/slabinfo", "/proc/interrupts",
                           "/proc/cmdline", "/proc/config.gz", "/proc/diskstats", "/proc/partitions", "/proc/swaps",
                           "/proc/locks", "/proc/key-users", "/proc/keys", "/proc/modules", "/proc/softirqs",
                           "/proc/schedstat", "/proc/vmstat", "/proc/zoneinfo", "/proc/buddyinfo",
                           "/proc/sys/kernel/random/boot_id", "/proc/sys/fs/dentry-state", "/proc/sys/fs/file-nr",
                           "/proc/sys/fs/inode-nr", "/proc/sys/fs/inode-state",
                           "/sys/kernel/vmcoreinfo", "/sys/kernel/notes", "/sys/class/dmi/id/product_uuid",
                           "/sys/kernel/debug/sched/debug", "/sys/kernel/security/lsm"};
    const char *directories[] = {"/proc/acpi", "/proc/scsi", "/proc/asound", "/sys/firmware", "/sys/kernel/debug",
                                 "/sys/kernel/tracing", "/sys/devices/virtual/powercap", "/proc/fs", "/proc/irq",
                                 "/proc/pressure"};
    const char *logs[] = {"/proc/kmsg", "/dev/kmsg", "/dev/mem", "/dev/kmem", "/dev/port"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        must_be_empty(files[i]);
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        must_have_no_entry(directories[i]);
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        /* Opened, not read: reading takes the messages away from the host's log daemon. */
        int fd = open(logs[i], O_RDONLY | O_NONBLOCK);
        struct stat info;
        attempts++;
        if (fd >= 0 && fstat(fd, &info) == 0 && (!S_ISCHR(info.st_mode) || info.st_rdev != 0x103))
            escape_found("%s opens", logs[i]);
        if (fd >= 0)
            close(fd);
    }
    /* What programs need is still there. */
    const char *needed[] = {"/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime",
                            "/proc/version", "/proc/filesystems", "/proc/mounts", "/proc/sys/kernel/random/uuid"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char buffer[64];
        if (slurp(needed[i], buffer, sizeof buffer) <= 0) {
            dprintf(1, "broken: %s cannot be read\n", needed[i]);
            return 1;
        }
    }
    must_show_no_address("/proc/kallsyms", 0);
    must_show_no_address("/proc/modules", 1);
    /* Action 10 asks only how much there is. */
    MUST_BE_FILTERED(syscall(SYS_syslog, 10, NULL, 0));
    return verdict();
}

/* Changes the sandbox's init through /proc: its memory, program, maps, out-of-memory score. */
#include "guest.h"

int main(void)
{
    const char *files[] = {"mem", "exe", "oom_score_adj", "oom_adj", "uid_map", "gid_map", "setgroups", "projid_map",
                           "timens_offsets", "coredump_filter", "clear_refs", "attr/current", "comm", "autogroup",
                           "timerslack_ns", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "fd/5", "root/tmp", "cwd/x"};
    const char *processes[] = {"1", "1/task/1"};
    char path[128];
    for (size_t p = 0; p < sizeof processes / sizeof *processes; p++)
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "/proc/%s/%s", processes[p], files[i]);
            int fd = open(path, O_WRONLY | O_NOCTTY);
            must_fail(path, fd);
            if (fd >= 0)
                close(fd);
        }
    return verdict();
}

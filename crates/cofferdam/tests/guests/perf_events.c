/* Opens a performance counter on itself and on everything: a way to watch neighbours, and many kernel bugs. */
#include "guest.h"
#include <linux/perf_event.h>

int main(void)
{
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_TASK_CLOCK,
                                    .disabled = 1, .exclude_kernel = 1, .exclude_hv = 1};
    MUST_BE_FILTERED(syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
    MUST_BE_FILTERED(syscall(SYS_perf_event_open, &event, -1, 0, -1, 0));
    MUST_BE_FILTERED(syscall(SYS_perf_event_open, &event, 1, -1, -1, 0));
    return verdict();
}

/* Sets the machine's clock, which no namespace holds. Tries to set it to what it shows already. */
#include "guest.h"
#include <sys/time.h>
#include <sys/timex.h>

int main(void)
{
    struct timespec now;
    struct timeval day;
    struct timex tick = {.modes = ADJ_TICK};
    clock_gettime(CLOCK_REALTIME, &now);
    gettimeofday(&day, NULL);
    tick.tick = 10000;
    MUST_FAIL(clock_settime(CLOCK_REALTIME, &now));
    MUST_FAIL(syscall(SYS_settimeofday, &day, NULL));
    MUST_FAIL(adjtimex(&tick));
    MUST_FAIL(clock_adjtime(CLOCK_REALTIME, &tick));
    MUST_FAIL(open("/dev/rtc0", O_RDWR));
    MUST_FAIL(open("/proc/self/timens_offsets", O_WRONLY));
    return verdict();
}

/* Multiplies: children, grandchildren, daemons with a session of their own. Argument 1 is the most processes that may be
 * alive at once, this one among them; at most 5000 are tried. */
#include "guest.h"
#include <sys/prctl.h>

static void linger(volatile int *alive)
{
    for (int depth = 0; depth < 5; depth++) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        __atomic_add_fetch(alive, 1, __ATOMIC_SEQ_CST);
        if (depth == 2)
            setsid();
        if (fork() != 0)
            break;
    }
    for (;;)
        sleep_ms(1000);
}

int main(int argc, char **argv)
{
    long limit = number(argc, argv, 1, 10), refused = 0;
    volatile int *alive = shared_memory(4096);
    *alive = 1;
    for (int i = 0; i < 5000 && *alive <= limit + 50; i++) {
        pid_t pid = fork();
        if (pid == 0)
            linger(alive);
        refused += pid < 0;
        if (refused > 200)
            break;
        if (pid < 0)
            sleep_ms(2);
    }
    sleep_ms(300);
    if (*alive > limit)
        escaped("%d processes alive at once, %ld allowed", *alive, limit);
    if (refused == 0)
        escaped("no fork was refused");
    contained("%d processes alive at once, %ld allowed", *alive, limit);
}

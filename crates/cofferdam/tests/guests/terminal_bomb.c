/* Takes pseudo-terminals until refused, from several processes: the host has a fixed number for everyone. Argument 1 is
 * the number before which it must be refused. */
#include "guest.h"
#include <sys/resource.h>

int main(int argc, char **argv)
{
    long cap = number(argc, argv, 1, 3072);
    volatile long *taken = shared_memory(4096);
    volatile int *finished = shared_memory(4096);
    struct rlimit limit;
    int processes = 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    for (int i = 0; i < 6; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            while (*taken < cap && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
                __atomic_add_fetch(taken, 1, __ATOMIC_SEQ_CST);
            __atomic_add_fetch(finished, 1, __ATOMIC_SEQ_CST);
            for (;;)
                sleep_ms(1000);
        }
        processes += pid > 0;
    }
    for (int i = 0; i < 200 && *finished < processes; i++)
        sleep_ms(50);
    kill(-1, SIGKILL);
    if (*taken >= cap)
        escaped("holds %ld terminals", *taken);
    contained("%ld terminals", *taken);
}

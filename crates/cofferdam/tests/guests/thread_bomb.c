/* As a fork bomb, with threads: argument 1 is the most that may be alive, the first among them. */
#include "guest.h"
#include <pthread.h>

static void *linger(void *nothing)
{
    for (;;)
        sleep_ms(1000);
    return nothing;
}

int main(int argc, char **argv)
{
    long limit = number(argc, argv, 1, 10), alive = 1;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 14);
    for (int i = 0; i < 5000; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, linger, NULL) != 0)
            break;
        alive++;
    }
    if (alive > limit)
        escaped("%ld threads alive at once, %ld allowed", alive, limit);
    contained("%ld threads alive at once, %ld allowed", alive, limit);
}

/* Takes what the kernel counts per user and not per sandbox: inotify instances and watches, POSIX message queues,
 * pending signals, file locks, timers. Argument 1 is the number of each before which it must be refused. With --own-user,
 * the sandbox has a user of its own, and all that a user may have. */
#include "guest.h"
#include <mqueue.h>
#include <sys/inotify.h>
#include <sys/resource.h>

static void report(const char *what, long taken, long cap)
{
    attempts++;
    if (taken >= cap)
        escape_found("%ld %s", taken, what);
    else
        dprintf(1, "%ld %s, then: %s\n", taken, what, strerror(errno));
}

int main(int argc, char **argv)
{
    long cap = number(argc, argv, 1, 100000), taken;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    for (taken = 0; taken < cap; taken++) {
        timer_t timer;
        struct sigevent none = {.sigev_notify = SIGEV_NONE};
        if (timer_create(CLOCK_MONOTONIC, &none, &timer) != 0)
            break;
    }
    report("timers", taken, cap);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (taken = 0; taken < cap; taken++) {
        union sigval value = {0};
        if (sigqueue(getpid(), SIGRTMIN, value) != 0)
            break;
    }
    report("pending signals", taken, cap);
    for (taken = 0; taken < cap; taken++) {
        char name[32];
        struct mq_attr small = {.mq_maxmsg = 10, .mq_msgsize = 8192};
        snprintf(name, sizeof name, "/hostile-%ld", taken);
        mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &small);
        if (queue == (mqd_t)-1)
            break;
        close((int)queue);
    }
    report("message queues", taken, cap);
    for (taken = 0; taken < cap; taken++)
        if (inotify_init1(IN_CLOEXEC) < 0)
            break;
    report("inotify instances", taken, cap);
    char text[32];
    int own_user = argc > 2 && strcmp(argv[2], "--own-user") == 0;
    if (!own_user && slurp("/proc/sys/fs/inotify/max_user_instances", text, sizeof text) > 0 && taken > atol(text) / 4)
        escape_found("%ld of the %ld inotify instances that the host gives a user", taken, atol(text));
    return verdict();
}

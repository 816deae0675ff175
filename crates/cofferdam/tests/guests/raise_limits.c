/* Raises what holds it: resource limits, priority, real-time scheduling, its place in the out-of-memory order. */
#include "guest.h"
#include <sched.h>
#include <sys/resource.h>

/* A change of the core limit may seem to succeed; what counts is that nothing has changed. */
static void attack_core_limit(void)
{
    struct rlimit before, after, higher = {RLIM_INFINITY, RLIM_INFINITY}, none = {0, 0};
    attempts++;
    if (getrlimit(RLIMIT_CORE, &before) != 0)
        return;
    setrlimit(RLIMIT_CORE, &higher);
    setrlimit(RLIMIT_CORE, &none);
    prlimit(0, RLIMIT_CORE, &none, NULL);
    if (getrlimit(RLIMIT_CORE, &after) == 0 && (after.rlim_cur != before.rlim_cur || after.rlim_max != before.rlim_max))
        escape_found("the core limit changed to %llu", (unsigned long long)after.rlim_cur);
    must_fail("the core limit of init", prlimit(1, RLIMIT_CORE, &none, NULL));
}

static void attack_limit(int resource, const char *name)
{
    struct rlimit limit, higher, own;
    if (resource == RLIMIT_CORE)
        return attack_core_limit();
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0)
        return;
    if (limit.rlim_max != RLIM_INFINITY) {
        higher = (struct rlimit){limit.rlim_cur, limit.rlim_max + 1};
        must_fail(name, setrlimit((__rlimit_resource_t)resource, &higher));
        higher.rlim_max = RLIM_INFINITY;
        must_fail(name, setrlimit((__rlimit_resource_t)resource, &higher));
        must_fail(name, prlimit(getpid(), (__rlimit_resource_t)resource, &higher, NULL));
    }
    own = limit;
    must_fail("a limit of init", prlimit(1, (__rlimit_resource_t)resource, &own, NULL));
}

int main(void)
{
    const struct { int resource; const char *name; } limits[] = {
        {RLIMIT_AS, "AS"}, {RLIMIT_CORE, "CORE"}, {RLIMIT_CPU, "CPU"}, {RLIMIT_DATA, "DATA"}, {RLIMIT_FSIZE, "FSIZE"},
        {RLIMIT_LOCKS, "LOCKS"}, {RLIMIT_MEMLOCK, "MEMLOCK"}, {RLIMIT_MSGQUEUE, "MSGQUEUE"}, {RLIMIT_NICE, "NICE"},
        {RLIMIT_NOFILE, "NOFILE"}, {RLIMIT_NPROC, "NPROC"}, {RLIMIT_RSS, "RSS"}, {RLIMIT_RTPRIO, "RTPRIO"},
        {RLIMIT_RTTIME, "RTTIME"}, {RLIMIT_SIGPENDING, "SIGPENDING"}, {RLIMIT_STACK, "STACK"}};
    struct rlimit limit;
    struct sched_param priority = {.sched_priority = 1};
    char text[32];

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        attack_limit(limits[i].resource, limits[i].name);
    attempts += 2;
    if (getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max > 1)
        escape_found("core dumps of %llu bytes are allowed", (unsigned long long)limit.rlim_max);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > 1048576)
        escape_found("%llu descriptors are allowed", (unsigned long long)limit.rlim_max);

    attempts += 2;
    if (getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_max > 0)
        escape_found("the priority may be raised to %llu", (unsigned long long)limit.rlim_max);
    if (getrlimit(RLIMIT_RTPRIO, &limit) == 0 && limit.rlim_max > 0)
        escape_found("real-time priority %llu is allowed", (unsigned long long)limit.rlim_max);

    MUST_FAIL(setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) - 5));
    must_fail("setpriority of init", setpriority(PRIO_PROCESS, 1, -5));
    MUST_FAIL(sched_setscheduler(0, SCHED_FIFO, &priority));
    MUST_FAIL(sched_setscheduler(0, SCHED_RR, &priority));
    MUST_FAIL(syscall(SYS_ioprio_set, 1, 0, 1 << 13 /* real time */));

    long score = 0;
    attempts++;
    if (slurp("/proc/self/oom_score_adj", text, sizeof text) > 0 && (score = atol(text)) <= 0)
        escape_found("the out-of-memory score is %ld, not raised", score);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY);
    must_fail("lower out-of-memory score", fd < 0 ? -1 : write(fd, "-1000", 5));
    must_fail("zero out-of-memory score", fd < 0 ? -1 : write(fd, "0", 1));
    return verdict();
}

/* Takes processor time away from process 1 of the sandbox, which keeps its limits and may have the guests' user: by its
 * scheduling class, priority, processors, limits, memory, or a signal. */
#include "guest.h"
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448
#endif
#ifndef SCHED_IDLE
#define SCHED_IDLE 5
#endif

enum { WHO_PROCESS = 1, WHO_GROUP = 2, WHO_USER = 3, IDLE_CLASS = 3 << 13 };

static void scheduling(pid_t pid)
{
    struct sched_param none = {0};
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t times[3]; } attributes = {
        .size = 48, .policy = SCHED_IDLE};
    MUST_BE_FILTERED(syscall(SYS_sched_setscheduler, pid, SCHED_IDLE, &none));
    MUST_BE_FILTERED(syscall(SYS_sched_setparam, pid, &none));
    MUST_BE_FILTERED(syscall(SYS_sched_setattr, pid, &attributes, 0));
    MUST_BE_FILTERED(syscall(SYS_setpriority, PRIO_PROCESS, pid, 19));
    MUST_BE_FILTERED(syscall(SYS_setpriority, PRIO_PGRP, pid, 19));
    MUST_BE_FILTERED(syscall(SYS_ioprio_set, WHO_PROCESS, pid, IDLE_CLASS));
    MUST_BE_FILTERED(syscall(SYS_ioprio_set, WHO_GROUP, pid, IDLE_CLASS));
}

static void signals(void)
{
    siginfo_t info = {.si_signo = SIGCHLD, .si_code = SI_QUEUE};
    MUST_BE_FILTERED(syscall(SYS_kill, 1, SIGCHLD));
    MUST_BE_FILTERED(syscall(SYS_tkill, 1, SIGCHLD));
    MUST_BE_FILTERED(syscall(SYS_tgkill, 1, 1, SIGCHLD));
    MUST_BE_FILTERED(syscall(SYS_rt_sigqueueinfo, 1, SIGCHLD, &info));
    MUST_BE_FILTERED(syscall(SYS_rt_tgsigqueueinfo, 1, 1, SIGCHLD, &info));
}

static void limits_and_memory(void)
{
    struct rlimit few = {8, 8};
    struct iovec nothing = {0};
    char page[1];
    void *pages[] = {page};
    int nodes[] = {0}, status[1];
    MUST_BE_FILTERED(syscall(SYS_prlimit64, 1, RLIMIT_NOFILE, &few, NULL));
    MUST_BE_FILTERED(syscall(SYS_prlimit64, 1, RLIMIT_CPU, &few, NULL));
    MUST_BE_FILTERED(syscall(SYS_process_madvise, -1, &nothing, 1, 21, 0));
    MUST_BE_FILTERED(syscall(SYS_process_mrelease, -1, 0));
    MUST_BE_FILTERED(syscall(SYS_process_vm_writev, 1, &nothing, 1, &nothing, 1, 0));
    MUST_BE_FILTERED(syscall(SYS_move_pages, 1, 1, pages, nodes, status, 0));
    MUST_BE_FILTERED(syscall(SYS_migrate_pages, 1, 8, &few, &few));
    MUST_BE_FILTERED(syscall(SYS_get_robust_list, 1, &pages, &few));
    MUST_BE_FILTERED(syscall(SYS_kcmp, 1, getpid(), 0, 0, 0));
    MUST_BE_FILTERED(syscall(SYS_ptrace, PTRACE_SEIZE, 1, 0, 0));
    MUST_FAIL(setpgid(1, 0));
}

int main(void)
{
    cpu_set_t all, one;
    scheduling(1);
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    MUST_BE_FILTERED(syscall(SYS_sched_setaffinity, 1, sizeof one, &one));
    /* All processes of the user at once. */
    MUST_BE_FILTERED(syscall(SYS_setpriority, PRIO_USER, 0, 19));
    MUST_BE_FILTERED(syscall(SYS_setpriority, PRIO_USER, getuid(), 19));
    MUST_BE_FILTERED(syscall(SYS_ioprio_set, WHO_USER, getuid(), IDLE_CLASS));
    signals();
    limits_and_memory();
    /* Another process of the sandbox may keep the limits of some of the rest. */
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    if (child < 0)
        could_not_try("fork: %s", strerror(errno));
    scheduling(child);
    sched_getaffinity(child, sizeof all, &all);
    syscall(SYS_sched_setaffinity, child, sizeof one, &one);
    cpu_set_t now;
    sched_getaffinity(child, sizeof now, &now);
    attempts++;
    if (!CPU_EQUAL(&all, &now))
        escape_found("another process was bound to one processor");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return verdict();
}

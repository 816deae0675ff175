/* Burns three times the processor seconds it may (argument 2), ignoring the signal that warns. Argument 1: "one" process,
 * "many" at once, a "relay" of short ones, none of which is ever over its own limit, or "unreaped" ones, which vanish with their
 * times because no process waits for them. */
#include "guest.h"
#include <sys/resource.h>

static void burn(double seconds)
{
    struct timespec used;
    volatile unsigned long work = 0;
    signal(SIGXCPU, SIG_IGN);
    do {
        for (int i = 0; i < 200000; i++)
            work += (unsigned long)i;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    } while ((double)used.tv_sec + (double)used.tv_nsec / 1e9 < seconds);
}

static void burn_unreaped(double goal)
{
    const double piece = 0.008;
    signal(SIGCHLD, SIG_IGN);
    for (double done = 0; done < goal; done += piece) {
        pid_t pid = fork();
        if (pid == 0) {
            burn(piece);
            _exit(7);
        }
        if (pid < 0)
            done -= piece;
        sleep_ms(8);
    }
    escaped("used about %.2f processor seconds in children that no process waited for", goal);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "one";
    double goal = 3.0 * (double)number(argc, argv, 2, 1), done = 0, piece = goal;
    int at_once = 1;
    if (strcmp(how, "many") == 0) {
        at_once = 4;
        piece = goal / 4;
    } else if (strcmp(how, "relay") == 0) {
        piece = 0.25;
    }
    signal(SIGXCPU, SIG_IGN);
    if (strcmp(how, "unreaped") == 0)
        burn_unreaped(goal);
    while (done < goal) {
        int started = 0, failed = 0;
        for (int i = 0; i < at_once; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                burn(piece);
                _exit(7);
            }
            started += pid > 0;
        }
        for (int i = 0, status; i < started; i++) {
            wait(&status);
            failed += !WIFEXITED(status) || WEXITSTATUS(status) != 7;
        }
        if (started == 0 || failed > 0)
            contained("stopped after %.2f of %.2f processor seconds", done, goal);
        done += piece * started;
    }
    /* A watchdog that only looks now and then may still come. */
    sleep_ms(1500);
    escaped("used %.2f processor seconds", done);
}

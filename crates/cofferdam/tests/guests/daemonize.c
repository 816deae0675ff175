/* Leaves a process behind that outlives its exec: two forks, a session of its own, no descriptor left, all signals
 * ignored. Argument 1 is the word by which the harness finds it on the host once the sandbox is closed. */
#include "guest.h"

int main(void)
{
    int ready[2];
    char byte;
    if (pipe(ready) != 0)
        could_not_try("pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        for (int signal_number = 1; signal_number < 65; signal_number++)
            signal(signal_number, SIG_IGN);
        close(0);
        close(1);
        close(2);
        (void)!write(ready[1], "x", 1);
        close(ready[0]);
        close(ready[1]);
        for (;;)
            sleep_ms(1000);
    }
    if (pid < 0)
        could_not_try("fork: %s", strerror(errno));
    close(ready[1]);
    waitpid(pid, NULL, 0);
    (void)!read(ready[0], &byte, 1);
    contained("a daemon was left behind; the harness looks for it");
}

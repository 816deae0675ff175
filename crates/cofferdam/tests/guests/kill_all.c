/* kill(-1): everything it may signal, then the sandbox's init with every signal, by number, group and descriptor. A
 * signal that init ignores is no escape; the harness checks that the host's process and the sandbox live on. */
#include "guest.h"

int main(void)
{
    int sent = 0;
    /* Linux does not send kill(-1) to the sender, but a group signal may reach it. */
    for (int number = 1; number < 65; number++)
        signal(number, SIG_IGN);
    for (int number = 1; number < 65; number++)
        if (number != SIGSTOP && number != SIGTSTP)
            sent += kill(1, number) == 0;
    sent += kill(1, SIGSTOP) == 0;
    sent += kill(getppid(), SIGKILL) == 0;
    sent += kill(getppid(), SIGSTOP) == 0;
    for (int number = 1; number < 65; number++)
        if (number != SIGSTOP && number != SIGTSTP)
            sent += kill(-1, number) == 0;
    for (int process = 2; process < 4096; process++)
        if (process != getpid())
            sent += kill(process, SIGKILL) == 0;
    contained("%d signals were accepted; the harness looks for what they did", sent);
}

/* CVE-2017-5226: types into the terminal that the process outside reads next. Also with garbage in the upper half
 * of the request, which the kernel drops and a filter may compare (CVE-2019-10063), and by the console's paste.
 * Argument "own" tries only a terminal of its own making. */
#include "guest.h"
#include <pty.h>
#include <sys/ioctl.h>

static int only_own;

static void attack(const char *name, int fd)
{
    char letter = 'x';
    char paste[] = {3, 0}, select_all[] = {2, 1, 0, 1, 0, 80, 0, 25, 0, 0, 0};
    dprintf(1, "%s\n", name);
    MUST_FAIL(ioctl(fd, TIOCSTI, &letter));
    MUST_FAIL(syscall(SYS_ioctl, fd, (1UL << 32) | TIOCSTI, &letter));
    MUST_FAIL(syscall(SYS_ioctl, fd, 0xffffffff00000000UL | TIOCSTI, &letter));
    MUST_FAIL(ioctl(fd, TIOCLINUX, select_all));
    MUST_FAIL(ioctl(fd, TIOCLINUX, paste));
    MUST_FAIL(syscall(SYS_ioctl, fd, (1UL << 32) | TIOCLINUX, paste));
    /* Takes the machine's console away where it works, so never outside a sandbox. */
    if (!only_own)
        MUST_FAIL(ioctl(fd, TIOCCONS));
}

static void attack_own(void)
{
    int master, slave;
    if (openpty(&master, &slave, NULL, NULL, NULL) != 0) {
        dprintf(1, "no terminal of its own: %s\n", strerror(errno));
        return;
    }
    setsid();
    ioctl(slave, TIOCSCTTY, 0);
    attack("its own terminal", slave);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "own") == 0) {
        only_own = 1;
        attack_own();
        return verdict();
    }
    attack("stdin", 0);
    attack("stdout", 1);
    attack("stderr", 2);
    int tty = open("/dev/tty", O_RDWR | O_NOCTTY);
    if (tty >= 0)
        attack("/dev/tty", tty);
    for (int console = 0; console < 4; console++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/tty%d", console);
        MUST_FAIL(open(path, O_RDWR | O_NOCTTY));
    }
    MUST_FAIL(open("/dev/console", O_RDWR | O_NOCTTY));
    attack_own();
    return verdict();
}

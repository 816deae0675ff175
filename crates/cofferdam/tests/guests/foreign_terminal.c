/* Opens the terminals of others: every pts number, the host's among them, through the sandbox's own /dev/pts. */
#include "guest.h"
#include <sys/ioctl.h>

int main(void)
{
    int own = isatty(0);
    struct stat info, mine = {0};
    if (own)
        fstat(0, &mine);
    for (int i = 0; i < 256; i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/pts/%d", i);
        attempts++;
        int fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
        if (fd < 0)
            continue;
        if (fstat(fd, &info) == 0 && (!own || info.st_rdev != mine.st_rdev || info.st_dev != mine.st_dev))
            escape_found("opened %s, which is not its own", path);
        close(fd);
    }
    return verdict();
}

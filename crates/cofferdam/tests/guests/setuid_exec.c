/* Executes every set-uid or set-gid program there is and looks at the credentials of the dead child, which stay readable
 * until it is reaped. Each is only asked for its version. */
#include "guest.h"
#include <dirent.h>

static void ids_of(pid_t pid, long *user, long *group)
{
    char path[64], status[4096], *line;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    *user = geteuid();
    *group = getegid();
    if (slurp(path, status, sizeof status) <= 0)
        return;
    if ((line = strstr(status, "\nUid:")) != NULL)
        sscanf(line + 5, "%*d %ld", user);
    if ((line = strstr(status, "\nGid:")) != NULL)
        sscanf(line + 5, "%*d %ld", group);
}

static void attack(const char *path)
{
    siginfo_t info;
    long user, group;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        alarm(5);
        execl(path, path, "--version", (char *)NULL);
        _exit(126);
    }
    if (pid < 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0)
        could_not_try("fork: %s", strerror(errno));
    ids_of(pid, &user, &group);
    attempts++;
    if (user != (long)geteuid() || group != (long)getegid())
        escape_found("%s ran as uid %ld gid %ld", path, user, group);
    waitpid(pid, NULL, 0);
}

int main(void)
{
    const char *directories[] = {"/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/lib/openssh",
                                 "/usr/lib/dbus-1.0", "/usr/libexec"};
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        DIR *stream = opendir(directories[i]);
        for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
            char path[512];
            struct stat info;
            snprintf(path, sizeof path, "%s/%s", directories[i], entry->d_name);
            if (lstat(path, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & (S_ISUID | S_ISGID)) != 0)
                attack(path);
        }
        if (stream != NULL)
            closedir(stream);
    }
    if (attempts == 0)
        could_not_try("this host has no set-uid program");
    return verdict();
}

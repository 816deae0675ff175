/* Crashes, so that the host's core handler (a program that runs as root outside) or a core file gets its memory. */
#include "guest.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/resource.h>

int main(void)
{
    struct rlimit limit, unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    const int signals[] = {SIGSEGV, SIGABRT, SIGQUIT, SIGSYS};
    attempts++;
    setrlimit(RLIMIT_CORE, &unlimited);
    if (getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur > 1)
        escape_found("core files of %llu bytes are allowed", (unsigned long long)limit.rlim_cur);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            getrlimit(RLIMIT_CORE, &limit);
            limit.rlim_cur = limit.rlim_max;
            setrlimit(RLIMIT_CORE, &limit);
            prctl(PR_SET_DUMPABLE, 1);
            (void)!chdir("/workspace");
            signal(signals[i], SIG_DFL);
            raise(signals[i]);
            _exit(0);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            could_not_try("fork: %s", strerror(errno));
        attempts++;
        if (WIFSIGNALED(status) && WCOREDUMP(status))
            escape_found("signal %d dumped core", signals[i]);
    }
    DIR *stream = opendir("/workspace");
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;)
        if (strncmp(entry->d_name, "core", 4) == 0 && strchr(entry->d_name, '_') == NULL)
            escape_found("a core file %s", entry->d_name);
    return verdict();
}

/* Runs a command, and prints on standard error by how many MiB the kernel's available memory decreased meanwhile. Exits like the
 * command. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long available(void)
{
    char line[128];
    long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %ld", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib / 1024;
}

int main(int argc, char **argv)
{
    int status = 0;
    long before = available(), least = before;
    pid_t child = fork();
    if (argc < 2 || child < 0)
        return 125;
    if (child == 0) {
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        long now = available();
        least = now < least ? now : least;
        usleep(5000);
    }
    fprintf(stderr, "taken %ld\n", before - least);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Looks for a secret of the supervisor's environment (argument 1) in its own environment, in the environment and
 * command line of every process it can see. */
#include "guest.h"
#include <dirent.h>

extern char **environ;

static void search(const char *path, const char *secret)
{
    static char buffer[1 << 20];
    ssize_t length = slurp(path, buffer, sizeof buffer);
    attempts++;
    if (length > 0 && memmem(buffer, (size_t)length, secret, strlen(secret)) != NULL)
        escape_found("the supervisor's secret is in %s", path);
}

int main(int argc, char **argv)
{
    char secret[512], path[512];
    if (argc < 2)
        could_not_try("no secret given");
    /* The secret is given backwards, so that this program's own command line is no hit. */
    size_t length = strlen(argv[1]);
    if (length < 8 || length >= sizeof secret)
        could_not_try("the secret's length is wrong");
    for (size_t i = 0; i < length; i++)
        secret[i] = argv[1][length - 1 - i];
    secret[length] = '\0';

    for (char **entry = environ; *entry != NULL; entry++) {
        attempts++;
        if (strstr(*entry, secret) != NULL)
            escape_found("the supervisor's secret is in the environment");
    }
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc != NULL && (entry = readdir(proc)) != NULL;) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        const char *files[] = {"environ", "cmdline"};
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(path, sizeof path, "/proc/%s/%s", entry->d_name, files[i]);
            search(path, secret);
        }
    }
    return verdict();
}

/* Learns from /proc/self/cgroup where on the host its control group lies, which tells of the host and of its neighbours. */
#include "guest.h"

int main(void)
{
    char line[4096];
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (file == NULL)
        contained("no /proc/self/cgroup");
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *second = strchr(line, ':'), *path = second == NULL ? NULL : strchr(second + 1, ':');
        attempts++;
        if (path != NULL && strcmp(path + 1, "/") != 0)
            escape_found("sees the group %s", line);
    }
    return verdict();
}

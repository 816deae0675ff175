/* Gives itself another identity by writing its user namespace's maps. */
#include "guest.h"

static void attack(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    must_fail(path, fd < 0 ? -1 : write(fd, text, strlen(text)));
    if (fd >= 0)
        close(fd);
}

int main(void)
{
    char map[256] = "";
    const char *maps[] = {"0 0 1\n", "1000 0 1\n", "0 1000 1\n", "0 0 4294967295\n"};
    attack("/proc/self/setgroups", "allow");
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        attack("/proc/self/uid_map", maps[i]);
        attack("/proc/self/gid_map", maps[i]);
        attack("/proc/1/uid_map", maps[i]);
    }
    /* No more than one identity. Whose it is on the host only the host can tell, and its test does. */
    unsigned long inside, outside, length;
    if (slurp("/proc/self/uid_map", map, sizeof map) > 0 && sscanf(map, "%lu %lu %lu", &inside, &outside, &length) == 3 &&
        length != 1)
        escape_found("the map is %s", map);
    return verdict();
}

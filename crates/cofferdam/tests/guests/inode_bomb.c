/* Makes empty files, directories and symlinks, which take no disk blocks but kernel memory. Argument 1 is the number
 * before which it must be stopped, 2 the directory. */
#include "guest.h"

int main(int argc, char **argv)
{
    long cap = number(argc, argv, 1, 2000000), made = 0;
    const char *directory = argc > 2 ? argv[2] : "/workspace";
    char path[512], target[200];
    memset(target, 't', sizeof target - 1);
    target[sizeof target - 1] = '\0';
    if (chdir(directory) != 0)
        could_not_try("%s: %s", directory, strerror(errno));
    while (made < cap) {
        snprintf(path, sizeof path, "d%ld", made / 1000);
        if (made % 1000 == 0 && mkdir(path, 0755) != 0)
            break;
        snprintf(path, sizeof path, "d%ld/%ld", made / 1000, made);
        int failed = made % 2 == 0 ? mknod(path, S_IFREG | 0600, 0) : symlink(target, path);
        if (failed != 0)
            break;
        made++;
    }
    if (made >= cap)
        escaped("made %ld files", made);
    contained("%ld files, then: %s", made, strerror(errno));
}

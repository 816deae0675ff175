/* "Shocker" (2014): opens any file of a mounted file system by its number, past every path check. Argument 1 names the
 * directory whose file system is tried. */
#include "guest.h"

struct handle {
    struct file_handle head;
    unsigned char body[128];
};

int main(int argc, char **argv)
{
    const char *directory = argc > 1 ? argv[1] : "/usr";
    struct handle handle = {0};
    int mount_id = 0;
    int anchor = open(directory, O_RDONLY | O_DIRECTORY);
    if (anchor < 0)
        could_not_try("%s: %s", directory, strerror(errno));
    handle.head.handle_bytes = sizeof handle.body;
    if (name_to_handle_at(AT_FDCWD, directory, &handle.head, &mount_id, 0) != 0) {
        /* The form that ext4 and tmpfs use; number 2 is ext4's root. */
        dprintf(1, "refused: name_to_handle_at: %s\n", strerror(errno));
        handle.head.handle_bytes = 8;
        handle.head.handle_type = 1;
        handle.body[0] = 2;
    }
    MUST_FAIL(open_by_handle_at(anchor, &handle.head, O_RDONLY));
    handle.head.handle_bytes = 8;
    handle.head.handle_type = 1;
    memset(handle.body, 0, sizeof handle.body);
    handle.body[0] = 2;
    MUST_FAIL(open_by_handle_at(anchor, &handle.head, O_RDONLY));
    MUST_FAIL(open_by_handle_at(AT_FDCWD, &handle.head, O_RDONLY));
    return verdict();
}

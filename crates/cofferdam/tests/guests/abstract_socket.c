/* CVE-2020-15257: connects to an abstract Unix socket of the host. Argument 1 is its name; a desktop's bus and display
 * are tried as well. */
#include "guest.h"
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static void attack(const char *name)
{
    const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length + 1 > sizeof address.sun_path)
        could_not_try("the name is too long");
    memcpy(address.sun_path + 1, name, length);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int fd = socket(AF_UNIX, types[i] | SOCK_NONBLOCK, 0);
        must_fail(name, fd < 0 ? -1 : connect(fd, (struct sockaddr *)&address, size));
        if (fd >= 0)
            close(fd);
    }
}

int main(int argc, char **argv)
{
    const char *names[] = {"/tmp/.X11-unix/X0", "/tmp/.ICE-unix/1", "/tmp/dbus-session", "/containerd-shim/moby/shim.sock"};
    for (int i = 1; i < argc; i++)
        attack(argv[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        attack(names[i]);
    return verdict();
}

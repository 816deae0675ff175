/* Connects to a Unix socket in the host's file system: the container engine's, the system bus, and those given as
 * arguments. */
#include "guest.h"
#include <sys/socket.h>
#include <sys/un.h>

static void attack(const char *path)
{
    const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        could_not_try("the path is too long: %s", path);
    strcpy(address.sun_path, path);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int fd = socket(AF_UNIX, types[i] | SOCK_NONBLOCK, 0);
        must_fail(path, fd < 0 ? -1 : connect(fd, (struct sockaddr *)&address, sizeof address));
        if (fd >= 0)
            close(fd);
    }
}

int main(int argc, char **argv)
{
    const char *paths[] = {"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
                           "/run/podman/podman.sock", "/run/systemd/private", "/run/systemd/journal/socket",
                           "/run/systemd/notify", "/dev/log", "/run/dbus/system_bus_socket", "/run/udev/control",
                           "/run/user/0/bus", "/run/user/1000/bus", "/run/user/1000/wayland-0", "/tmp/.X11-unix/X0",
                           "/var/run/nscd/socket", "/run/postgresql/.s.PGSQL.5432"};
    for (int i = 1; i < argc; i++)
        attack(argv[i]);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        attack(paths[i]);
    return verdict();
}

/* Reaches a TCP server on the host's loopback (its port is argument 1), a cloud's metadata server and the world. */
#include "guest.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

static long reach(int type, const struct sockaddr *address, socklen_t size)
{
    int error = 0;
    socklen_t length = sizeof error;
    int fd = socket(address->sa_family, type | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    long result = connect(fd, address, size);
    if (result == -1 && errno == EINPROGRESS) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (poll(&ready, 1, 500) <= 0)
            error = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
        result = error == 0 ? 0 : -1;
        errno = error;
    }
    if (result == 0 && type == SOCK_DGRAM)
        result = send(fd, "x", 1, 0) == 1 ? 0 : -1;
    error = errno;
    close(fd);
    errno = error;
    return result;
}

static void attack(int type, const char *host, long port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    must_fail(host, reach(type, (struct sockaddr *)&address, sizeof address));
}

int main(int argc, char **argv)
{
    long port = number(argc, argv, 1, 1);
    attack(SOCK_STREAM, "127.0.0.1", port);
    /* Outside a sandbox it is proved here, and nothing further is touched. */
    if (escapes > 0)
        return verdict();
    attack(SOCK_STREAM, "0.0.0.0", port);
    struct sockaddr_in6 local = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    must_fail("::1", reach(SOCK_STREAM, (struct sockaddr *)&local, sizeof local));
    /* Documentation, metadata, private and public addresses: no route must lead to any. */
    const char *hosts[] = {"169.254.169.254", "192.0.2.1", "172.17.0.1", "10.0.2.2", "192.168.0.1", "8.8.8.8"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        attack(SOCK_STREAM, hosts[i], 80);
        attack(SOCK_DGRAM, hosts[i], 53);
    }
    return verdict();
}

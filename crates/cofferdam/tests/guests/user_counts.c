/* Takes what the kernel counts for a user and not for a sandbox: inotify instances, and descriptors that were sent and that
 * not received yet. With "take" it takes all it gets, reports it, and keeps it until it is killed; with "use" it must
 * still get one inotify instance beside others that take. */
#include "guest.h"
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* The most that one message can carry. */
#define MOST 253

static int send_copies(int socket, int count)
{
    union {
        char bytes[CMSG_SPACE(MOST * sizeof(int))];
        struct cmsghdr head;
    } control = {0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes};
    message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    for (int i = 0; i < count; i++)
        ((int *)CMSG_DATA(&control.head))[i] = 1;
    return sendmsg(socket, &message, MSG_DONTWAIT) == 1;
}

int main(int argc, char **argv)
{
    long instances = 0, sent = 0;
    if (argc > 1 && strcmp(argv[1], "use") == 0) {
        if (inotify_init1(IN_CLOEXEC) < 0)
            escaped("another sandbox left no inotify instance: %s", strerror(errno));
        contained("an inotify instance is there");
    }
    int pair[2];
    for (int i = 0; i < 40 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0; i++)
        while (send_copies(pair[0], MOST))
            sent += MOST;
    while (instances < 100000 && inotify_init1(IN_CLOEXEC) >= 0)
        instances++;
    dprintf(1, "taken: %ld descriptors on their way, %ld inotify instances\n", sent, instances);
    for (;;)
        pause();
}

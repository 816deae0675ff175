/* Changes the network it was given: a new link, an address, a route, by netlink and by ioctl. */
#include "guest.h"
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/route.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

struct request {
    struct nlmsghdr header;
    char body[256];
};

/* Sends one request and gives what the kernel answered: 0, or -1 and errno. */
static long ask(struct request *request)
{
    char answer[4096];
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fd < 0)
        return -1;
    struct timeval wait = {2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    request->header.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
    ssize_t got = send(fd, request, request->header.nlmsg_len, 0) < 0 ? -1 : recv(fd, answer, sizeof answer, 0);
    int error = errno;
    close(fd);
    errno = error;
    if (got < (ssize_t)(sizeof(struct nlmsghdr) + sizeof(struct nlmsgerr)))
        return -1;
    struct nlmsghdr *header = (struct nlmsghdr *)answer;
    if (header->nlmsg_type != NLMSG_ERROR)
        return 0;
    errno = -((struct nlmsgerr *)NLMSG_DATA(header))->error;
    return errno == 0 ? 0 : -1;
}

static void add(struct request *request, unsigned short type, const void *data, size_t size)
{
    struct rtattr *attribute = (struct rtattr *)((char *)request + NLMSG_ALIGN(request->header.nlmsg_len));
    attribute->rta_type = type;
    attribute->rta_len = (unsigned short)RTA_LENGTH(size);
    memcpy(RTA_DATA(attribute), data, size);
    request->header.nlmsg_len = NLMSG_ALIGN(request->header.nlmsg_len) + RTA_ALIGN(attribute->rta_len);
}

int main(void)
{
    uint32_t address = inet_addr("192.0.2.77"), loopback = 1;

    struct request link = {.header = {.nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
    struct { struct rtattr info; char kind[8]; } dummy = {{12, 1 /* IFLA_INFO_KIND */}, "dummy"};
    link.header.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg));
    add(&link, IFLA_IFNAME, "hostile0", 9);
    add(&link, IFLA_LINKINFO, &dummy, sizeof dummy);
    MUST_FAIL(ask(&link));

    struct request down = {.header = {.nlmsg_type = RTM_NEWLINK}};
    struct ifinfomsg *state = NLMSG_DATA(&down.header);
    down.header.nlmsg_len = NLMSG_LENGTH(sizeof *state);
    state->ifi_index = 1;
    state->ifi_change = IFF_UP;
    MUST_FAIL(ask(&down));

    struct request own = {.header = {.nlmsg_type = RTM_NEWADDR, .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
    struct ifaddrmsg *message = NLMSG_DATA(&own.header);
    own.header.nlmsg_len = NLMSG_LENGTH(sizeof *message);
    message->ifa_family = AF_INET;
    message->ifa_prefixlen = 24;
    message->ifa_index = loopback;
    add(&own, IFA_LOCAL, &address, sizeof address);
    MUST_FAIL(ask(&own));

    struct request route = {.header = {.nlmsg_type = RTM_NEWROUTE, .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
    struct rtmsg *path = NLMSG_DATA(&route.header);
    route.header.nlmsg_len = NLMSG_LENGTH(sizeof *path);
    path->rtm_family = AF_INET;
    path->rtm_table = RT_TABLE_MAIN;
    path->rtm_protocol = RTPROT_BOOT;
    path->rtm_scope = RT_SCOPE_LINK;
    path->rtm_type = RTN_UNICAST;
    add(&route, RTA_OIF, &loopback, sizeof loopback);
    MUST_FAIL(ask(&route));

    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq change = {.ifr_name = "lo"};
    change.ifr_flags = 0;
    must_fail("SIOCSIFFLAGS", fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &change));
    change.ifr_mtu = 1280;
    must_fail("SIOCSIFMTU", fd < 0 ? -1 : ioctl(fd, SIOCSIFMTU, &change));
    struct rtentry entry = {.rt_flags = RTF_UP};
    must_fail("SIOCADDRT", fd < 0 ? -1 : ioctl(fd, SIOCADDRT, &entry));
    return verdict();
}

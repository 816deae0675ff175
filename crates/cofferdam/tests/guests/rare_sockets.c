/* Sockets of families that reach past the network namespace (vsock), need privilege (packet, raw), or have been doors
 * into the kernel (AF_ALG, netfilter, key management). No ordinary program needs one. */
#include "guest.h"
#include <sys/socket.h>

int main(void)
{
    const struct {
        const char *name;
        int family, type, protocol;
    } sockets[] = {
        {"AF_VSOCK stream", 40, SOCK_STREAM, 0},    {"AF_VSOCK datagram", 40, SOCK_DGRAM, 0},
        {"AF_PACKET raw", 17, SOCK_RAW, 0x0300},    {"AF_PACKET datagram", 17, SOCK_DGRAM, 0x0300},
        {"AF_INET raw ICMP", 2, SOCK_RAW, 1},       {"AF_INET raw", 2, SOCK_RAW, 255},
        {"AF_INET6 raw ICMP", 10, SOCK_RAW, 58},    {"AF_INET packet", 2, 10, 0x0300},
        {"AF_ALG", 38, SOCK_SEQPACKET, 0},          {"AF_KEY", 15, SOCK_RAW, 2},
        {"AF_XDP", 44, SOCK_RAW, 0},                {"AF_BLUETOOTH", 31, SOCK_RAW, 1},
        {"AF_CAN", 29, SOCK_RAW, 1},                {"AF_TIPC", 30, SOCK_SEQPACKET, 0},
        {"AF_RDS", 21, SOCK_SEQPACKET, 0},          {"AF_NFC", 39, SOCK_SEQPACKET, 0},
        {"AF_SMC", 43, SOCK_STREAM, 0},             {"AF_QIPCRTR", 42, SOCK_DGRAM, 0},
        {"AF_KCM", 41, SOCK_DGRAM, 0},              {"AF_LLC", 26, SOCK_DGRAM, 0},
        {"AF_AX25", 3, SOCK_DGRAM, 0},              {"AF_APPLETALK", 5, SOCK_DGRAM, 0},
        {"AF_X25", 9, SOCK_SEQPACKET, 0},           {"AF_PPPOX", 24, SOCK_STREAM, 0},
        {"AF_PHONET", 35, SOCK_DGRAM, 0},           {"AF_IEEE802154", 36, SOCK_DGRAM, 0},
        {"netlink xfrm", 16, SOCK_RAW, 6},          {"netlink netfilter", 16, SOCK_RAW, 12},
        {"netlink audit", 16, SOCK_RAW, 9},         {"netlink crypto", 16, SOCK_RAW, 21},
        {"netlink uevent", 16, SOCK_RAW, 15},       {"netlink SCSI transport", 16, SOCK_RAW, 18},
        {"IPPROTO_SCTP", 2, SOCK_STREAM, 132},      {"IPPROTO_DCCP", 2, 6, 33},
        {"IPPROTO_UDPLITE", 2, SOCK_DGRAM, 136},
    };
    for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++) {
        int fd = socket(sockets[i].family, sockets[i].type, sockets[i].protocol);
        must_fail(sockets[i].name, fd);
        if (fd >= 0)
            close(fd);
    }
    return verdict();
}

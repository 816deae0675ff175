/* Makes the kernel allocate ten times the memory that the sandbox may use, in one kind of its objects, and keeps them for a
 * moment. The host samples its own memory meanwhile; the program itself only reports its progress.
 * Arguments: form, goal in MiB, processes, milliseconds to hold. */
#include "guest.h"
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>

#define KIB (1L << 10)
#define MIB (1L << 20)
#define PAGE 4096L

static char block[1 << 16];

/* Each form allocates some more and returns the estimated number of bytes, or 0 if no more is available. */

/* Shared memory whose page table entries are gone: the mapping keeps it, and no page of it is in the process's count. */
static long zero_device(void)
{
    int fd = open("/dev/zero", O_RDWR);
    if (fd < 0)
        return 0;
    char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return 0;
    for (long at = 0; at < 8 * MIB; at += PAGE)
        memory[at] = 1;
    madvise(memory, 8 * MIB, MADV_DONTNEED);
    return 8 * MIB;
}

static long semaphores(void)
{
    return semget(IPC_PRIVATE, 32000, IPC_CREAT | 0600) < 0 ? 0 : 32000 * 64;
}

static long messages(void)
{
    struct { long kind; char text[8192]; } message = {.kind = 1};
    int queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    long held = 0;
    if (queue < 0)
        return 0;
    while (msgsnd(queue, &message, sizeof message.text, IPC_NOWAIT) == 0)
        held += sizeof message.text;
    return held;
}

/* One page of a table for every page read, and nothing in the count of pages. */
static long page_tables(void)
{
    long size = 1L << 30;
    volatile char *memory = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    madvise((void *)memory, (size_t)size, MADV_NOHUGEPAGE);
    for (long at = 0; at < size; at += 2 * MIB)
        (void)memory[at];
    return size / 512;
}

static long mappings(void)
{
    /* Neighbours differ, so that the kernel does not join them. */
    char *memory = mmap(NULL, 2000 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    long held = 0;
    if (memory == MAP_FAILED)
        return 0;
    for (long at = 0; at < 2000; at += 2)
        if (mprotect(memory + at * PAGE, PAGE, PROT_READ) == 0)
            held += 2 * 200;
    return held;
}

static long fill(int fd)
{
    long held = 0;
    for (ssize_t sent; (sent = send(fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;)
        held += sent;
    return held;
}

static int listener_of(int family, struct sockaddr_storage *address, socklen_t *length)
{
    int fd = socket(family, SOCK_STREAM, 0);
    *length = family == AF_UNIX ? sizeof(sa_family_t) : sizeof(struct sockaddr_in);
    memset(address, 0, sizeof *address);
    address->ss_family = (sa_family_t)family;
    if (family == AF_INET)
        ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int size = 1 << 26;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (fd < 0 || bind(fd, (struct sockaddr *)address, *length) != 0 || listen(fd, 4096) != 0)
        return -1;
    *length = sizeof *address;
    return getsockname(fd, (struct sockaddr *)address, length) == 0 ? fd : -1;
}

/* Connections that nothing accepts, with something in each; one descriptor holds thousands. */
static long unaccepted(int family)
{
    static struct sockaddr_storage address;
    static socklen_t length;
    static int listener = -1;
    for (int tries = 0; tries < 2; tries++) {
        if (listener < 0 && (listener = listener_of(family, &address, &length)) < 0)
            return 0;
        int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
        int joined = fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0;
        if (!joined && errno == EINPROGRESS) {
            struct timespec pause = {0, 100000};
            nanosleep(&pause, NULL);
            joined = connect(fd, (struct sockaddr *)&address, length) == 0 || errno == EISCONN;
        }
        if (joined) {
            long held = fill(fd);
            close(fd);
            return held > 0 ? held : 1;
        }
        if (fd < 0)
            return 0;
        close(fd);
        /* This queue is full; the next one is empty, and the descriptor of this one stays. */
        listener = -1;
    }
    return 0;
}

/* Sockets full of data that are in no process's table: each is on its way through another one. */
static long in_flight(void)
{
    int pair[2], carrier[2];
    char control[CMSG_SPACE(sizeof pair)] = {0}, byte = 'x';
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, carrier) != 0)
        return 0;
    long held = fill(pair[0]) + fill(pair[1]);
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof pair);
    memcpy(CMSG_DATA(head), pair, sizeof pair);
    int sent = sendmsg(carrier[0], &message, MSG_DONTWAIT) == 1;
    close(pair[0]);
    close(pair[1]);
    close(carrier[0]);
    return sent ? held : 0;
}

static long datagrams(int family)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int size = 1 << 26, receiver = socket(family, SOCK_DGRAM, 0), sender = socket(family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    long held = 0;
    memset(&address, 0, sizeof address);
    address.ss_family = (sa_family_t)family;
    if (family == AF_INET)
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t given = family == AF_UNIX ? sizeof(sa_family_t) : sizeof(struct sockaddr_in);
    if (receiver < 0 || sender < 0)
        return 0;
    setsockopt(receiver, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (bind(receiver, (struct sockaddr *)&address, given) != 0)
        return 0;
    getsockname(receiver, (struct sockaddr *)&address, &length);
    if (connect(sender, (struct sockaddr *)&address, length) != 0)
        return 0;
    /* UDP drops what does not fit, and says nothing. */
    for (int i = 0; i < 16 && send(sender, block, 60000, MSG_DONTWAIT) > 0; i++)
        held += 60000;
    close(sender);
    return held;
}

static long connections(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int size = 1 << 26, listener = listener_of(AF_INET, &address, &length), fd = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || fd < 0)
        return 0;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (connect(fd, (struct sockaddr *)&address, length) != 0)
        return 0;
    int taken = accept(listener, NULL, NULL);
    close(listener);
    if (taken < 0)
        return 0;
    long held = fill(fd) + fill(taken);
    return held > 0 ? held : 1;
}

/* Datagrams that are never finished wait in the sender. */
static long corked(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
    if (fd < 0)
        return 0;
    setsockopt(fd, IPPROTO_UDP, 1 /* UDP_CORK */, &one, sizeof one);
    long sent = sendto(fd, block, 60000, MSG_MORE, (struct sockaddr *)&address, sizeof address);
    return sent > 0 ? sent : 1;
}

/* Answers that nothing reads. */
static long netlink(void)
{
    struct { struct nlmsghdr head; char rest[16]; } ask = {{sizeof ask, 0xffff, NLM_F_REQUEST | NLM_F_ACK, 1, 0}, {0}};
    int size = 1 << 26, fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd < 0)
        return 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    long held = 0;
    for (int i = 0; i < 1000 && send(fd, &ask, sizeof ask, 0) > 0; i++)
        held += 500;
    return held;
}

/* Locks of ranges of files: no limit of the kernel's counts them. It goes through all locks of a file for each new one. */
static long locks(int command)
{
    static char name[64];
    static int number;
    snprintf(name, sizeof name, "/tmp/locks-%d-%d", getpid(), number++);
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    long held = 0;
    if (fd < 0)
        return 0;
    for (int i = 200; i > 0; i--) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1};
        if (fcntl(fd, command, &lock) != 0)
            break;
        held += 200;
    }
    return held;
}

/* Half of the descriptors watch the other half. */
static long watchers(void)
{
    int sets[200], watched[200];
    long held = 0;
    for (int i = 0; i < 200; i++)
        sets[i] = epoll_create1(0), watched[i] = dup(0);
    for (int i = 0; i < 200; i++)
        for (int j = 0; j < 200; j++) {
            struct epoll_event event = {.events = EPOLLIN};
            held += epoll_ctl(sets[i], EPOLL_CTL_ADD, watched[j], &event) == 0 ? 160 : 0;
        }
    return held;
}

/* Events that nothing reads. */
static long events(void)
{
    char name[300];
    int fd = inotify_init1(IN_NONBLOCK);
    if (fd < 0 || inotify_add_watch(fd, "/tmp", IN_CREATE | IN_DELETE) < 0)
        return 0;
    memset(name, 'n', sizeof name);
    memcpy(name, "/tmp/", 5);
    name[240] = '\0';
    for (int i = 0; i < 8000; i++) {
        int made = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (made < 0)
            break;
        close(made);
        unlink(name);
    }
    return 16000 * 300;
}

static long lock_table(void)
{
    return prctl(78 /* PR_FUTEX_HASH */, 1, 1UL << 22, 0, 0) == 0 ? 256 * MIB : 0;
}

static long filters(void)
{
    static struct sock_filter code[4000];
    for (int i = 0; i < 3999; i++)
        code[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
    code[3999] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {4000, code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 200 * KIB : 0;
}

/* A pipe that refers to one small page of a huge one keeps all of it. */
static long spliced_pages(void)
{
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0)
        return 0;
    long held = 0;
    for (int i = 0; i < 16; i++) {
        char *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            break;
        char *huge = (char *)(((uintptr_t)memory + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
        madvise(huge, 2 * MIB, MADV_HUGEPAGE);
        memset(huge, 1, 2 * MIB);
        struct iovec page = {huge, 1};
        if (vmsplice(ends[1], &page, 1, SPLICE_F_NONBLOCK) == 1)
            held += 2 * MIB;
        munmap(memory, 4 * MIB);
    }
    return held;
}

/* Sockets and pipes that refer to pages of files, one byte of each; the files are gone. */
static long sent_pages(void)
{
    int ends[2], fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
        return 0;
    long held = 0, pages = 250;
    if (ftruncate(fd, pages * PAGE) != 0)
        return 0;
    for (long page = 0; page < pages; page++) {
        off_t at = page * PAGE;
        if (pwrite(fd, block, PAGE, at) != PAGE || sendfile(ends[0], fd, &at, 1) != 1)
            break;
        held += PAGE;
    }
    close(fd);
    return held;
}

static long memberships(void)
{
    static uint32_t group;
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);
    long held = 0;
    if (fd < 0)
        return 0;
    for (int i = 0; i < 2000; i++) {
        struct ipv6_mreq want = {.ipv6mr_interface = 1};
        want.ipv6mr_multiaddr.s6_addr[0] = 0xff;
        want.ipv6mr_multiaddr.s6_addr[1] = 0x01;
        group++;
        uint32_t pid = (uint32_t)getpid();
        memcpy(&want.ipv6mr_multiaddr.s6_addr[8], &pid, 4);
        memcpy(&want.ipv6mr_multiaddr.s6_addr[12], &group, 4);
        held += setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &want, sizeof want) == 0 ? 400 : 0;
    }
    return held;
}

static long names(void)
{
    static long number;
    char name[256];
    snprintf(name, sizeof name, "/tmp/%d-%ld-%0200d", getpid(), number++, 0);
    return mknod(name, S_IFREG | 0600, 0) == 0 ? KIB : 0;
}

/* Written pages that are then only to be read no longer count against RLIMIT_DATA. */
static long read_only(void)
{
    char *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    memset(memory, 1, 4 * MIB);
    mprotect(memory, 4 * MIB, PROT_READ);
    return 4 * MIB;
}

static long pipes(void)
{
    int ends[2];
    long held = 0;
    if (pipe2(ends, O_NONBLOCK) != 0)
        return 0;
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    for (ssize_t wrote; (wrote = write(ends[1], block, PAGE)) > 0;)
        held += wrote;
    return held;
}

/* Connections that both ends have closed: the kernel keeps the addresses of each for a minute. */
static long closed(void)
{
    static struct sockaddr_storage address;
    static socklen_t length;
    static int listener = -1;
    if (listener < 0 && (listener = listener_of(AF_INET, &address, &length)) < 0)
        return 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0)
        return 0;
    int taken = accept(listener, NULL, NULL);
    close(fd);
    close(taken);
    return taken < 0 ? 0 : 300;
}

/* Filters of sockets: the kernel keeps the program as given and as machine code. */
static long socket_filters(void)
{
    static struct sock_filter code[2000];
    for (int i = 0; i < 1999; i++)
        code[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_IMM, (uint32_t)i);
    code[1999] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {2000, code};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    return fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 ? 48 * KIB : 0;
}

/* The options of one socket: a header for its packets, as large as the kernel allows, and keys for signatures. */
static long socket_options(void)
{
    static char header[1 << 16];
    /* One entry of a control message: a hop limit. The kernel keeps the whole buffer. */
    struct cmsghdr *entry = (struct cmsghdr *)header;
    int limit = 64, fd = socket(AF_INET6, SOCK_DGRAM, 0), stream = socket(AF_INET, SOCK_STREAM, 0);
    long held = 0;
    entry->cmsg_level = IPPROTO_IPV6;
    entry->cmsg_type = 8 /* IPV6_2292HOPLIMIT */;
    entry->cmsg_len = CMSG_LEN(sizeof limit);
    memcpy(CMSG_DATA(entry), &limit, sizeof limit);
    for (long size = 64000; fd >= 0 && size > 1000 && held == 0; size -= 1000)
        if (setsockopt(fd, IPPROTO_IPV6, 6 /* IPV6_2292PKTOPTIONS */, header, (socklen_t)size) == 0)
            held += size;
    for (uint32_t i = 1; stream >= 0 && i < 200; i++) {
        struct tcp_md5sig key = {.tcpm_keylen = 8};
        struct sockaddr_in *peer = (struct sockaddr_in *)&key.tcpm_addr;
        peer->sin_family = AF_INET;
        peer->sin_addr.s_addr = htonl(i);
        if (setsockopt(stream, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key) != 0)
            break;
        held += 192;
    }
    return held;
}

/* Access control lists of files, as large as the kernel allows: one user, named again and again. */
static long access_lists(void)
{
    static struct { uint32_t version; struct { uint16_t tag, rights; uint32_t id; } entries[8180]; } list = {.version = 2};
    static long number;
    char name[64];
    uint32_t last = sizeof list.entries / sizeof *list.entries - 1;
    for (uint32_t i = 0; i <= last; i++) {
        list.entries[i].tag = i == 0 ? 1 : i == last - 2 ? 4 : i == last - 1 ? 0x10 : i == last ? 0x20 : 2;
        list.entries[i].rights = 6;
        list.entries[i].id = list.entries[i].tag == 2 ? getuid() : (uint32_t)-1;
    }
    snprintf(name, sizeof name, "/tmp/list-%d-%ld", getpid(), number++);
    if (mknod(name, S_IFREG | 0600, 0) != 0)
        return 0;
    return setxattr(name, "system.posix_acl_access", &list, sizeof list, 0) == 0 ? 64 * KIB : 0;
}

/* One lock for each time that a file is opened. */
static long whole_file_locks(void)
{
    int fd = open("/tmp/whole", O_CREAT | O_RDWR, 0600);
    return fd >= 0 && flock(fd, LOCK_SH) == 0 ? 200 + 256 : 0;
}

/* Rules about directories: each has an object that belongs to its inode. */
static long landlock_rules(void)
{
    static long number;
    char name[64];
    struct landlock_ruleset_attr attributes = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    long held = 0;
    for (int i = 0; rules >= 0 && i < 100; i++) {
        snprintf(name, sizeof name, "/tmp/rule-%d-%ld", getpid(), number++ % 2000);
        int fd = open(name, O_CREAT | O_RDONLY | O_CLOEXEC, 0600);
        struct landlock_path_beneath_attr rule = {.allowed_access = LANDLOCK_ACCESS_FS_EXECUTE, .parent_fd = fd};
        if (fd >= 0 && syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0)
            held += 200;
        close(fd);
    }
    return held;
}

/* Names that do not exist, in a directory of the host's, and the pages of its files. */
static long host_files(void)
{
    static long number;
    static DIR *programs;
    char name[256];
    struct stat found;
    struct dirent *entry;
    long held = 0;
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "/usr/bin/%d-%ld-%0200d", getpid(), number++, 0);
        held += stat(name, &found) != 0 && errno == ENOENT ? 512 : 0;
    }
    if (programs == NULL && (programs = opendir("/usr/bin")) == NULL)
        return held;
    if ((entry = readdir(programs)) != NULL) {
        int fd = openat(dirfd(programs), entry->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        for (ssize_t size; fd >= 0 && (size = read(fd, block, sizeof block)) > 0;)
            held += size;
        if (fd >= 0)
            close(fd);
    }
    return held;
}

static const char *form;

static long once(void)
{
    static const struct { const char *name; long (*take)(void); } plain[] = {
        {"zero-device", zero_device}, {"semaphores", semaphores},   {"messages", messages},
        {"page-tables", page_tables}, {"mappings", mappings},       {"in-flight", in_flight},
        {"connections", connections}, {"corked", corked},           {"netlink", netlink},
        {"watchers", watchers},       {"events", events},           {"lock-table", lock_table},
        {"filters", filters},         {"spliced-pages", spliced_pages}, {"sent-pages", sent_pages},
        {"memberships", memberships}, {"names", names},             {"read-only", read_only},
        {"pipes", pipes},             {"hidden", read_only},        {"closed", closed},
        {"flock", whole_file_locks},  {"host-files", host_files},   {"access-lists", access_lists},
        {"socket-filters", socket_filters}, {"socket-options", socket_options}, {"landlock", landlock_rules},
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(form, plain[i].name) == 0)
            return plain[i].take();
    if (strcmp(form, "unix-queue") == 0)
        return unaccepted(AF_UNIX);
    if (strcmp(form, "tcp-queue") == 0)
        return unaccepted(AF_INET);
    if (strcmp(form, "unix-datagrams") == 0)
        return datagrams(AF_UNIX);
    if (strcmp(form, "udp-datagrams") == 0)
        return datagrams(AF_INET);
    if (strcmp(form, "locks") == 0)
        return locks(F_SETLK);
    if (strcmp(form, "open-file-locks") == 0)
        return locks(F_OFD_SETLK);
    could_not_try("no such form: %s", form);
}

static long goal, hold;

static void *work(void *unused)
{
    long held = 0, more;
    double end = seconds_now() + (strstr(form, "locks") || strstr(form, "lists") ? 10 : 3);
    while (held < goal && seconds_now() < end && (more = once()) > 0)
        held += more;
    dprintf(1, "%ld MiB as %s\n", held / MIB, form);
    sleep_ms(hold);
    _exit(0);
    return unused;
}

int main(int argc, char **argv)
{
    form = argc > 1 ? argv[1] : "page-tables";
    goal = number(argc, argv, 2, 640) * MIB;
    long processes = number(argc, argv, 3, 1);
    hold = number(argc, argv, 4, 1500);
    memset(block, 'x', sizeof block);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (long i = 0; i < processes; i++) {
        if (fork() != 0)
            continue;
        goal /= processes;
        pthread_t thread;
        /* A process whose first thread has ended shows nothing of its memory by itself. */
        if (strcmp(form, "hidden") == 0 && pthread_create(&thread, NULL, work, NULL) == 0)
            pthread_exit(NULL);
        work(NULL);
    }
    while (wait(NULL) > 0) {
    }
    contained("the host says what was held as %s", form);
}

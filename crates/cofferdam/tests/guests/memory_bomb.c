/* Holds three times the memory it may, in one of many forms, from one or several processes, and for so long that a
 * watchdog that only looks now and then sees it too.
 * Arguments: form, limit in MiB, processes, and for the form "file" a directory. */
#include "guest.h"
#include <sys/shm.h>
#include <sys/socket.h>

#define MIB (1L << 20)

struct ledger {
    long held[64];
    int finished[64];
};

static const char *form, *directory;
static struct ledger *ledger;

static void fill(char *memory, long size)
{
    for (long i = 0; i < size; i += 64)
        memory[i] = (char)(i * 31 + 7);
}

static int pour(int fd, long size)
{
    static char block[1 << 16];
    fill(block, sizeof block);
    for (long done = 0; done < size;) {
        ssize_t wrote = write(fd, block, sizeof block);
        if (wrote <= 0)
            return 0;
        done += wrote;
    }
    return 1;
}

static long mapped(int flags, int lock)
{
    char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    if (lock && mlock(memory, MIB) != 0 && errno == EPERM)
        return 0;
    fill(memory, MIB);
    return MIB;
}

static long in_file(int number)
{
    char path[512];
    snprintf(path, sizeof path, "%s/bomb-%d-%d", directory, getpid(), number);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    long held = fd >= 0 && pour(fd, MIB) ? MIB : 0;
    if (fd >= 0)
        close(fd);
    return held;
}

/* A file without a name and without a mapping: in no process's resident size. */
static long in_memfd(int in_flight)
{
    static int ends[2] = {-1, -1};
    int fd = memfd_create("bomb", 0);
    if (fd < 0 || !pour(fd, 4 * MIB))
        return 0;
    if (!in_flight)
        return 4 * MIB;
    if (ends[0] < 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) != 0)
        return 0;
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(ends[0], &message, 0) < 0) {
        /* This queue is full; the next has room. The old ends stay open. */
        ends[0] = -1;
        close(fd);
        return 1;
    }
    close(fd);
    return 4 * MIB;
}

static long in_sysv(void)
{
    int id = shmget(IPC_PRIVATE, 4 * MIB, IPC_CREAT | 0600);
    char *memory = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
    if (memory == (char *)-1)
        return 0;
    fill(memory, 4 * MIB);
    shmdt(memory);
    return 4 * MIB;
}

static long in_pipe(int sockets)
{
    int ends[2];
    char block[4096];
    long held = 0;
    memset(block, 'x', sizeof block);
    if ((sockets ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) : pipe2(ends, O_NONBLOCK)) != 0)
        return 0;
    if (sockets) {
        int size = 1 << 24;
        setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    } else {
        fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    }
    for (ssize_t wrote; (wrote = write(ends[1], block, sizeof block)) > 0;)
        held += wrote;
    return held;
}

static long once(int number)
{
    if (strcmp(form, "private") == 0)
        return mapped(MAP_PRIVATE, 0);
    if (strcmp(form, "shared") == 0)
        return mapped(MAP_SHARED, 0);
    if (strcmp(form, "locked") == 0)
        return mapped(MAP_PRIVATE, 1);
    if (strcmp(form, "file") == 0)
        return in_file(number);
    if (strcmp(form, "memfd") == 0)
        return in_memfd(0);
    if (strcmp(form, "in-flight") == 0)
        return in_memfd(1);
    if (strcmp(form, "sysv") == 0)
        return in_sysv();
    if (strcmp(form, "pipe") == 0)
        return in_pipe(0);
    if (strcmp(form, "socket") == 0)
        return in_pipe(1);
    could_not_try("no such form: %s", form);
}

static void work(int slot, long goal)
{
    for (int number = 0; ledger->held[slot] < goal; number++) {
        long more = once(number);
        if (more == 0)
            break;
        ledger->held[slot] += more;
    }
    ledger->finished[slot] = 1;
    for (;;)
        sleep_ms(1000);
}

int main(int argc, char **argv)
{
    form = argc > 1 ? argv[1] : "private";
    long limit = number(argc, argv, 2, 64) * MIB, processes = number(argc, argv, 3, 1), total = 0;
    directory = argc > 4 ? argv[4] : "/workspace";
    /* Objects that outlive the process that created them. */
    int lasting = strcmp(form, "file") == 0 || strcmp(form, "sysv") == 0;
    pid_t pids[64] = {0};
    ledger = shared_memory(sizeof *ledger);
    if (processes < 1 || processes > 64)
        could_not_try("1 to 64 processes");
    for (int i = 0; i < processes; i++)
        if ((pids[i] = fork()) == 0)
            work(i, 3 * limit / processes);

    double end = seconds_now() + 20;
    double full = 0;
    for (;;) {
        int running = 0, busy = 0;
        total = 0;
        for (int i = 0; i < processes; i++) {
            int alive = pids[i] > 0 && waitpid(pids[i], NULL, WNOHANG) == 0;
            if (!alive)
                pids[i] = 0;
            running += alive;
            busy += alive && !ledger->finished[i];
            total += alive || lasting ? ledger->held[i] : 0;
        }
        /* Does not wait if it was refused. Beyond the limit it gives a watchdog time to act. */
        if (busy == 0 && full == 0)
            full = seconds_now() + (total > limit ? 4 : 0);
        if ((running == 0 && !lasting) || (full != 0 && seconds_now() > full) || seconds_now() > end)
            break;
        sleep_ms(50);
    }
    if (total > limit + limit / 4 + 8 * MIB)
        escaped("holds %ld MiB as %s in %ld processes, %ld MiB allowed", total / MIB, form, processes, limit / MIB);
    for (int i = 0; i < processes; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGKILL);
    contained("%ld MiB as %s in %ld processes, %ld MiB allowed", total / MIB, form, processes, limit / MIB);
}

/* Shared code of the hostile guest programs.
 *
 * A guest tries one attack on its sandbox and reports the result by its exit code:
 *   0  contained: every attempt was refused        ("contained: ...")
 *   42 the attack worked                           ("ESCAPED: ...")
 *   43 the attempt could not be made on this kernel or processor ("not tried: ...")
 * Output is unbuffered, so that a killed program still reports its progress.
 */
#ifndef GUEST_H
#define GUEST_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONTAINED = 0, ESCAPED = 42, COULD_NOT_TRY = 43 };

/* Numbers that are the same on every architecture, for headers that are older than the call. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#define SYS_fsopen 430
#define SYS_fsconfig 431
#define SYS_fsmount 432
#define SYS_fspick 433
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

#define SHARED __attribute__((unused)) static

SHARED int attempts;
SHARED int escapes;

#define FINISH(function, word, code)                                                                                   \
    __attribute__((unused, noreturn, format(printf, 1, 2))) static void function(const char *format, ...)              \
    {                                                                                                                  \
        va_list arguments;                                                                                             \
        va_start(arguments, format);                                                                                   \
        dprintf(1, "%s: ", word);                                                                                      \
        vdprintf(1, format, arguments);                                                                                \
        dprintf(1, "\n");                                                                                              \
        va_end(arguments);                                                                                             \
        _exit(code);                                                                                                   \
    }
FINISH(contained, "contained", CONTAINED)
FINISH(escaped, "ESCAPED", ESCAPED)
FINISH(could_not_try, "not tried", COULD_NOT_TRY)

/* Notes one thing that an attacker should not have got, and goes on. */
__attribute__((unused, format(printf, 1, 2))) static void escape_found(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    escapes++;
    if (escapes <= 40) {
        dprintf(1, "ESCAPED: ");
        vdprintf(1, format, arguments);
        dprintf(1, "\n");
    }
    va_end(arguments);
}

/* An attempt whose success is an escape; `result` is what a system call gave. Takes errno as the call left it. */
SHARED void must_fail(const char *what, long result)
{
    int error = errno;
    attempts++;
    if (result != -1)
        escape_found("%s gave %ld", what, result);
    else
        dprintf(1, "refused: %s: %s\n", what, strerror(error));
}
#define MUST_FAIL(call) must_fail(#call, (long)(call))

/* An attempt that must not even reach the kernel's own code for it: refused as not permitted or not there. A complaint
 * about an argument means that the filter let it through. */
SHARED void must_be_filtered(const char *what, long result)
{
    int error = errno;
    attempts++;
    if (result != -1)
        escape_found("%s gave %ld", what, result);
    else if (error != EPERM && error != ENOSYS && error != EACCES)
        escape_found("%s reached the kernel: %s", what, strerror(error));
    else
        dprintf(1, "refused: %s: %s\n", what, strerror(error));
}
#define MUST_BE_FILTERED(call) must_be_filtered(#call, (long)(call))

/* The exit code for all attempts noted so far. */
SHARED int verdict(void)
{
    if (escapes > 0)
        return ESCAPED;
    dprintf(1, "contained: %d attempts refused\n", attempts);
    return CONTAINED;
}

/* Bytes read from the start of a file, -1 when it cannot be opened or read; never blocks. */
SHARED ssize_t slurp(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t got = 0;
    while (length + 1 < size && (got = read(fd, buffer + length, size - 1 - length)) > 0)
        length += (size_t)got;
    int error = errno;
    close(fd);
    errno = error;
    buffer[length] = '\0';
    return length == 0 && got < 0 ? -1 : (ssize_t)length;
}

/* Memory that children share with their parent. */
SHARED void *shared_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        /* The stricter filter refuses anonymous shared memory; a file that is gone again serves as well. */
        char name[] = "/tmp/shared-XXXXXX";
        int fd = mkstemp(name);
        if (fd >= 0) {
            unlink(name);
            if (ftruncate(fd, (off_t)size) == 0)
                memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
        }
    }
    if (memory == MAP_FAILED)
        could_not_try("no shared page: %s", strerror(errno));
    return memory;
}

SHARED double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

SHARED void sleep_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

SHARED long number(int argc, char **argv, int index, long otherwise)
{
    return argc > index ? atol(argv[index]) : otherwise;
}
#endif

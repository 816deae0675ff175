/* Fills every writable place, together beyond the limit. Arguments: how (write, fallocate, mmap, unlinked, sparse), limit
 * in MiB, directories. Holes do not count, but with sparse: then no file may be much larger than the limit. */
#include "guest.h"
#include <setjmp.h>

#define MIB (1L << 20)

static sigjmp_buf full;

static void on_bus_error(int signal_number)
{
    (void)signal_number;
    siglongjmp(full, 1);
}

/* Adds one MiB at `place` of the file; 0 when refused. */
static int add(const char *how, int fd, long place)
{
    static char block[MIB];
    if (strcmp(how, "sparse") == 0)
        return ftruncate(fd, (4L << 40) + place) == 0;
    memset(block, 'x', sizeof block);
    if (strcmp(how, "fallocate") == 0)
        return fallocate(fd, 0, place, MIB) == 0;
    if (strcmp(how, "mmap") != 0)
        return pwrite(fd, block, MIB, place) == MIB;
    if (ftruncate(fd, place + MIB) != 0)
        return 0;
    char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, place);
    if (memory == MAP_FAILED)
        return 0;
    int done = 0;
    if (sigsetjmp(full, 1) == 0) {
        memset(memory, 'x', MIB);
        done = 1;
    }
    munmap(memory, MIB);
    return done;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "write";
    long limit = number(argc, argv, 2, 32), total = 0, refused = 0;
    if (argc < 4)
        could_not_try("no directory given");
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 3; i < argc; i++) {
        char path[512];
        for (int file = 0; file < 4; file++) {
            snprintf(path, sizeof path, "%s/bomb-%d-%d", argv[i], i, file);
            int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
            if (fd < 0) {
                refused++;
                continue;
            }
            if (strcmp(how, "unlinked") == 0)
                unlink(path);
            long here = 0;
            while (total <= 2 * limit && add(how, fd, here * MIB)) {
                if (strcmp(how, "sparse") == 0)
                    escaped("%s takes a file of 4 TiB", argv[i]);
                here++;
                total++;
            }
            refused += total <= 2 * limit;
            /* Left open, so that unlinked files keep their blocks. */
        }
    }
    if (total > limit)
        escaped("stored %ld MiB by %s, %ld allowed", total, how, limit);
    contained("stored %ld MiB by %s, %ld allowed, %ld refusals", total, how, limit, refused);
}

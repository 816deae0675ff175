/* Opens descriptors until refused; argument 1 is the number before which that must be. */
#include "guest.h"
#include <sys/resource.h>

int main(int argc, char **argv)
{
    long cap = number(argc, argv, 1, 1000000), open_now = 0;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    while (open_now < cap && open("/dev/null", O_RDONLY) >= 0)
        open_now++;
    if (open_now >= cap)
        escaped("opened %ld descriptors", open_now);
    contained("%ld descriptors, then: %s", open_now, strerror(errno));
}

/* Writes 100 MiB to stdout and stderr, to fill the supervisor's memory or disk. */
#include "guest.h"

int main(void)
{
    static char block[1 << 16];
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 1600; i++)
        if (write(1 + i % 2, block, sizeof block) <= 0)
            return CONTAINED;
    return CONTAINED;
}

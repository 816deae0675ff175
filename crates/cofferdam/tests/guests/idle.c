/* Does nothing for argument 1 seconds, so that the harness can look at it from the host. */
#include "guest.h"

int main(int argc, char **argv)
{
    dprintf(1, "ready\n");
    sleep_ms(number(argc, argv, 1, 3) * 1000);
    contained("idle");
}

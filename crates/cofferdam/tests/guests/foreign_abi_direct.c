/* One i386 system call without a child to catch the blow: the filter kills, and the exit tells the signal. */
#include "guest.h"

int main(void)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "r8", "r9", "r10", "r11", "memory", "cc");
    if ((int)result > 0)
        escaped("int 0x80 getpid gave %d", (int)result);
    contained("int 0x80 gave %d", (int)result);
#else
    could_not_try("written for x86_64");
#endif
}

/* Renames the machine. */
#include "guest.h"

int main(void)
{
    MUST_FAIL(sethostname("hostile", 7));
    MUST_FAIL(setdomainname("hostile", 7));
    MUST_FAIL(open("/proc/sys/kernel/hostname", O_WRONLY));
    return verdict();
}

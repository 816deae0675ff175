/* Weakens its own process for exploits: executable data, a fixed layout, a mapped page 0, another system's habits. */
#include "guest.h"
#include <sys/personality.h>

int main(void)
{
    MUST_BE_FILTERED(personality(READ_IMPLIES_EXEC));
    MUST_BE_FILTERED(personality(MMAP_PAGE_ZERO));
    MUST_BE_FILTERED(personality(ADDR_COMPAT_LAYOUT));
    MUST_BE_FILTERED(personality(PER_SVR4));
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    must_fail("mmap of page 0", page == MAP_FAILED ? -1 : 0);
    return verdict();
}

/* Includes the engine's regular expressions. The macro makes their recursion use the shadow stack. main.c describes
 * why. */
#include "libregexp.h"

#define lre_check_stack_overflow(opaque, size)                                                                         \
    ({                                                                                                                 \
        char stack_use[1024];                                                                                          \
        __asm__ volatile("" : : "r"(stack_use) : "memory");                                                            \
        lre_check_stack_overflow(opaque, size);                                                                        \
    })
#include "libregexp.c"

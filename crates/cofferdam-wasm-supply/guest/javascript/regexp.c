/* The engine's regular expressions, whose recursion is made to use the shadow stack, for the reason in main.c. */
#include "libregexp.h"

#define lre_check_stack_overflow(opaque, size)                                                                         \
    ({                                                                                                                 \
        char spent[1024];                                                                                              \
        __asm__ volatile("" : : "r"(spent) : "memory");                                                                \
        lre_check_stack_overflow(opaque, size);                                                                        \
    })
#include "libregexp.c"

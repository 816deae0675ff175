/* io_uring: a second road into the kernel that the filter does not see, and a rich source of kernel bugs. */
#include "guest.h"

int main(void)
{
    char parameters[120] = {0};
    MUST_BE_FILTERED(syscall(425 /* io_uring_setup */, 8, parameters));
    MUST_BE_FILTERED(syscall(426 /* io_uring_enter */, -1, 0, 0, 0, NULL, 0));
    MUST_BE_FILTERED(syscall(427 /* io_uring_register */, -1, 0, NULL, 0));
    return verdict();
}

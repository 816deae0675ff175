/* Key rings are not in any namespace: the session ring that was inherited may hold the host user's secrets. */
#include "guest.h"

int main(void)
{
    char buffer[1024];
    MUST_BE_FILTERED(syscall(SYS_keyctl, 0 /* GET_KEYRING_ID */, -3 /* session */, 0));
    MUST_BE_FILTERED(syscall(SYS_keyctl, 0, -4 /* user */, 0));
    MUST_BE_FILTERED(syscall(SYS_keyctl, 0, -5 /* user session */, 0));
    MUST_BE_FILTERED(syscall(SYS_keyctl, 11 /* READ */, -3, buffer, sizeof buffer));
    MUST_BE_FILTERED(syscall(SYS_keyctl, 6 /* DESCRIBE */, -3, buffer, sizeof buffer));
    MUST_BE_FILTERED(syscall(SYS_add_key, "user", "hostile", "x", 1, -2 /* process */));
    MUST_BE_FILTERED(syscall(SYS_request_key, "user", "hostile", NULL, 0));
    return verdict();
}

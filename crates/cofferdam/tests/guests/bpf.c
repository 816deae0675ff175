/* Loads BPF: a map, then a program that returns at once. */
#include "guest.h"

int main(void)
{
    struct { uint32_t type, key, value, entries, flags, rest[27]; } map = {2 /* array */, 4, 4, 1, 0, {0}};
    uint64_t code[] = {0xb7, 0x95}; /* r0 = 0; exit */
    struct { uint32_t type, count; uint64_t code, license; uint32_t rest[26]; } program = {
        1 /* socket filter */, 2, (uint64_t)(uintptr_t)code, (uint64_t)(uintptr_t)"GPL", {0}};
    MUST_BE_FILTERED(syscall(SYS_bpf, 0, &map, sizeof map));
    MUST_BE_FILTERED(syscall(SYS_bpf, 5, &program, sizeof program));
    MUST_BE_FILTERED(syscall(SYS_bpf, 7 /* OBJ_GET */, NULL, 0));
    return verdict();
}

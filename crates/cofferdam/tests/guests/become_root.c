/* Becomes root, or gains a capability, by asking. */
#include "guest.h"
#include <grp.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

static void check_status(void)
{
    char status[8192], *line;
    if (slurp("/proc/self/status", status, sizeof status) <= 0)
        return;
    const char *sets[] = {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        attempts++;
        if ((line = strstr(status, sets[i])) != NULL && strtoull(line + 7, NULL, 16) != 0)
            escape_found("holds %.30s", line);
    }
    attempts += 2;
    if ((line = strstr(status, "NoNewPrivs:")) != NULL && atoi(line + 11) != 1)
        escape_found("no_new_privs is off");
    if ((line = strstr(status, "Seccomp:")) != NULL && atoi(line + 8) != 2)
        escape_found("no system-call filter");
}

int main(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct all[2] = {{~0U, ~0U, ~0U}, {0x1ff, 0x1ff, 0x1ff}};
    gid_t groups[] = {0, 4, 6, 27, 42, 999};

    check_status();
    attempts++;
    if (getuid() == 0 || geteuid() == 0 || getgid() == 0 || getegid() == 0)
        escape_found("runs as root: uid %d gid %d", geteuid(), getegid());
    MUST_FAIL(setuid(0));
    MUST_FAIL(setreuid(0, 0));
    MUST_FAIL(setresuid(0, 0, 0));
    MUST_FAIL(setgid(0));
    MUST_FAIL(setresgid(0, 0, 0));
    MUST_FAIL(setgroups(sizeof groups / sizeof *groups, groups));
    MUST_FAIL(setgroups(0, NULL));
    setfsuid(0);
    must_fail("setfsuid", setfsuid(0) == 0 ? 0 : -1);
    MUST_FAIL(syscall(SYS_capset, &header, all));
    for (int capability = 0; capability < 64; capability++) {
        attempts++;
        if (prctl(PR_CAPBSET_READ, capability) == 1)
            escape_found("capability %d is in the bounding set", capability);
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0)
            escape_found("capability %d could be made ambient", capability);
    }
    MUST_FAIL(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
    MUST_FAIL(prctl(PR_SET_SECUREBITS, 0x2f));
    MUST_FAIL(prctl(PR_SET_SECCOMP, 0));
    return verdict();
}

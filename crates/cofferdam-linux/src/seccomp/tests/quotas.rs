//! Notifications of calls that have a quota, in numbers taken from the kernel's headers.
use super::{
    ALLOW, Arch, Call, EAFNOSUPPORT, ENOSYS, EPERM, KEY, Options, arguments, compile_stages, interpreter, number, run,
};

#[test]
fn calls_in_a_quota_notify_and_refusals_stay() {
    const NOTIFY: u32 = 0x7fc0_0000;
    let options = Options { quotas: true, ..Options::default() };
    for arch in Arch::ALL {
        let (early, late) = compile_stages(arch, &options);
        interpreter::verify(&late);
        let verdicts = |name: &str, values: &[u64]| {
            let number = number(arch, name).unwrap_or_else(|| panic!("{name} is no call"));
            let call = Call::new(arch, number, arguments(values));
            (run(&early, &call), run(&late, &call))
        };
        // F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, and one with a high bit that the kernel drops.
        for command in [6, 7, 37, 38, 6 | 1 << 32] {
            assert_eq!(verdicts("fcntl", &[3, command]), (ALLOW, NOTIFY), "{command}");
        }
        // F_DUPFD, F_GETFD, F_SETFL, F_GETLK, F_OFD_GETLK, F_DUPFD_CLOEXEC.
        for command in [0, 1, 4, 5, 36, 1030] {
            assert_eq!(verdicts("fcntl", &[3, command]), (ALLOW, ALLOW), "{command}");
        }
        assert_eq!(verdicts("fcntl", &[3, 1024]), (EPERM, ALLOW));
        assert_eq!(verdicts("listen", &[3, 4096]), (ALLOW, NOTIFY));
        assert_eq!(verdicts("socket", &[16, 3, 0]), (ALLOW, NOTIFY));
        // Another protocol of netlink: the kernel obeys the error.
        assert_eq!(verdicts("socket", &[16, 3, 9]), (EAFNOSUPPORT, NOTIFY));
        for family in [1, 2, 10] {
            assert_eq!(verdicts("socket", &[family, 1, 0]), (ALLOW, ALLOW));
        }
        // The raw socket of the launcher, with flags, and others.
        for kind in [3, 3 | 0o2_004_000] {
            assert_eq!(verdicts("socket", &[2, kind, 6]), (ALLOW, EPERM));
        }
        for (family, protocol) in [(2, 0), (2, 1), (2, 17), (2, 255), (10, 6)] {
            assert_eq!(verdicts("socket", &[family, 3, protocol]).0, EPERM, "{family} {protocol}");
        }
        // Filters of its own, but no listener of its own.
        assert_eq!(verdicts("seccomp", &[1, 0]), (ALLOW, ALLOW));
        assert_eq!(verdicts("seccomp", &[1, 8]), (ALLOW, 0x0005_0000 | 16));
        assert_eq!(verdicts("seccomp", &[1, 1 << 5 | 8]), (ALLOW, 0x0005_0000 | 16));
        for name in ["read", "flock", "connect", "accept4", "bind"] {
            assert_eq!(verdicts(name, &[6, 6, 6]), (ALLOW, ALLOW), "{name}");
        }
        // Processes are not counted.
        assert_eq!(verdicts("clone", &[17]), (ALLOW, ALLOW));
        assert_eq!(verdicts("pidfd_getfd", &[3, 4, 0]), (ALLOW, EPERM));
    }
}

#[test]
fn notifications_of_processes_leave_out_threads_and_the_init() {
    const NOTIFY: u32 = 0x7fc0_0000;
    const THREAD: u64 = 0x003d_0f00;
    let key = KEY.joined();
    let options = Options { quotas: true, count_processes: true, tag_key: Some(KEY), ..Options::default() };
    for arch in Arch::ALL {
        let (early, late) = compile_stages(arch, &options);
        interpreter::verify(&late);
        let verdicts = |name: &str, values: &[u64]| {
            let number = number(arch, name).unwrap_or_else(|| panic!("{name} is no call"));
            let call = Call::new(arch, number, arguments(values));
            (run(&early, &call), run(&late, &call))
        };
        assert_eq!(verdicts("clone", &[17]), (ALLOW, NOTIFY));
        // vfork, as in posix_spawn.
        assert_eq!(verdicts("clone", &[0x4111]), (ALLOW, NOTIFY));
        assert_eq!(verdicts("clone", &[THREAD]), (ALLOW, ALLOW));
        assert_eq!(verdicts("clone", &[0x4111, 0, 0, 0, 0, key]), (ALLOW, ALLOW));
        // Neither the key nor a thread opens the way to namespaces.
        for (flags, key) in [(0x2000_0011, 0), (0x2000_0011, key), (THREAD | 0x4000_0000, 0)] {
            assert_eq!(verdicts("clone", &[flags, 0, 0, 0, 0, key]), (ALLOW, EPERM), "{flags:x}");
        }
        // Neither half by itself shows that it was guessed.
        for guess in [key ^ 1, key ^ 1 << 40, key >> 32, key << 32] {
            assert_eq!(verdicts("clone", &[17, 0, 0, 0, 0, guess]), (ALLOW, NOTIFY));
            assert_eq!(verdicts("listen", &[3, 16, 0, 0, 0, guess]), (ALLOW, NOTIFY));
            assert_eq!(verdicts("pidfd_getfd", &[3, 4, 0, 0, 0, guess]), (ALLOW, EPERM), "{guess:x}");
        }
        assert_eq!(verdicts("clone3", &[0, 88]), (ALLOW, ENOSYS));
        if arch == Arch::X86_64 {
            assert_eq!(verdicts("fork", &[]), (ALLOW, NOTIFY));
            assert_eq!(verdicts("vfork", &[]), (ALLOW, NOTIFY));
        }
        assert_eq!(verdicts("listen", &[3, 16, 0, 0, 0, key]), (ALLOW, ALLOW));
        assert_eq!(verdicts("pidfd_getfd", &[3, 4, 0, 0, 0, key]), (ALLOW, ALLOW));
    }
}

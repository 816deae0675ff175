//! Tests of the policy, with numbers from the kernel's headers and not from the table.
use super::{
    AARCH64, ALLOW, ARM, Arch, Call, EAFNOSUPPORT, EINVAL, ENODEV, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT,
    I386, KILL, Options, PRETEND, X86_64, arguments, compile, compile_lone, number, run,
};

/// Returns the verdict on a call, on each architecture that has it. At least one must.
fn check(options: &Options, name: &str, values: &[u64], expected: u32) {
    let numbers = Arch::ALL.map(|arch| (arch, number(arch, name)));
    assert!(numbers.iter().any(|(_, number)| number.is_some()), "{name} is no system call");
    for (arch, number) in numbers {
        let Some(number) = number else { continue };
        let verdict = run(&compile(arch, options), &Call::new(arch, number, arguments(values)));
        assert_eq!(verdict, expected, "{arch:?} {name}{values:x?} {options:?}");
    }
}

fn default(name: &str, values: &[u64], expected: u32) {
    check(&Options::default(), name, values, expected);
}

#[test]
fn dangerous_calls_are_refused() {
    let refused = "mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr statmount
        listmount open_tree_attr chroot bpf io_uring_setup io_uring_enter io_uring_register userfaultfd keyctl add_key
        request_key perf_event_open kexec_load kexec_file_load init_module finit_module delete_module create_module
        query_module get_kernel_syms ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
        open_by_handle_at name_to_handle_at reboot swapon swapoff settimeofday clock_settime clock_adjtime adjtimex
        sethostname setdomainname syslog acct quotactl quotactl_fd iopl ioperm modify_ldt uselib ustat sysfs _sysctl
        nfsservctl lookup_dcookie vhangup fanotify_init fanotify_mark move_pages migrate_pages mbind set_mempolicy
        set_mempolicy_home_node memfd_secret lsm_get_self_attr lsm_set_self_attr lsm_list_modules remap_file_pages
        io_setup io_submit io_getevents io_cancel io_destroy io_pgetevents unshare setns";
    for name in refused.split_whitespace() {
        for argument in [0, 1, 2, 0x1000_0000, u64::MAX] {
            default(name, &[argument; 6], EPERM);
        }
    }
}

#[test]
fn ordinary_calls_are_allowed() {
    let allowed = "read write close fstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
        pread64 readv select mremap madvise dup2 nanosleep getpid connect accept4 execve execveat exit exit_group wait4
        kill fork vfork fcntl flock getdents64 getcwd rename link symlink unlinkat statx futex epoll_wait epoll_pwait
        eventfd2 signalfd4 timerfd_create inotify_init1 getrandom rseq membarrier pidfd_open pidfd_send_signal waitid
        landlock_create_ruleset seccomp setuid setgroups capset splice copy_file_range faccessat2 close_range preadv2
        pwritev2 futex_waitv futex_wake mseal arch_prctl getcpu times sysinfo uname getrusage setpriority
        restart_syscall shmget semop msgsnd mq_open memfd_create sched_setaffinity set_robust_list set_tid_address";
    for name in allowed.split_whitespace() {
        default(name, &[], ALLOW);
    }
}

/// Promise (Process isolation): System calls of another architecture kill the process.
#[test]
fn foreign_abis_are_killed() {
    for (arch, foreign) in [(Arch::X86_64, [I386, ARM, AARCH64, 0]), (Arch::Aarch64, [I386, ARM, X86_64, 0])] {
        let program = compile(arch, &Options::default());
        for audit in foreign {
            for number in 0..512 {
                assert_eq!(run(&program, &Call { number, arch: audit, arguments: [0; 6] }), KILL);
            }
        }
    }
}

#[test]
fn x32_is_killed() {
    let program = compile(Arch::X86_64, &Options::default());
    for number in (0x4000_0000..0x4000_0400).chain([0xc000_0000, u32::MAX]) {
        assert_eq!(run(&program, &Call::new(Arch::X86_64, number, [0; 6])), KILL, "{number:#x}");
    }
}

#[test]
fn numbers_without_a_call_answer_like_an_older_kernel() {
    for arch in Arch::ALL {
        let program = compile(arch, &Options::default());
        for number in [400, 470, 471, 512, 547, 1000, 0x3fff_ffff, 0x8000_0000] {
            assert_eq!(run(&program, &Call::new(arch, number, [0; 6])), ENOSYS, "{arch:?} {number}");
        }
    }
}

#[test]
fn calls_whose_arguments_cannot_be_seen_send_libraries_to_older_ones() {
    default("clone3", &[0x7fff_0000, 88], ENOSYS);
    default("openat2", &[0x7fff_0000, 88], ENOSYS);
}

#[test]
fn clone_makes_no_namespaces() {
    let new = [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
    for flag in new {
        default("clone", &[flag | 17], EPERM);
        default("clone", &[flag | 0x003d_0f00], EPERM);
        default("clone", &[flag | 0xffff_ffff_0000_0000], EPERM);
    }
    default("clone", &[17], ALLOW); // fork of an older glibc: SIGCHLD
    default("clone", &[0x003d_0f00], ALLOW); // pthread_create
    default("clone", &[0x0120_0011], ALLOW); // fork of glibc
    default("clone", &[0x0000_4111], ALLOW); // vfork
    default("clone", &[0x80], ALLOW); // an exit signal here, not CLONE_NEWTIME
}

#[test]
fn sockets_are_unix_tcp_udp_and_routing_queries() {
    let flags = 0o2_004_000; // SOCK_CLOEXEC | SOCK_NONBLOCK
    for kind in [1, 2, 5] {
        default("socket", &[1, kind | flags, 0], ALLOW);
    }
    for inet in [2, 10] {
        default("socket", &[inet, 1 | flags, 0], ALLOW);
        default("socket", &[inet, 1, 6], ALLOW);
        default("socket", &[inet, 2 | flags, 0], ALLOW);
        default("socket", &[inet, 2, 17], ALLOW);
        for raw in [3, 10] {
            default("socket", &[inet, raw, 0], EPERM);
            default("socket", &[inet, raw | flags, 255], EPERM);
            default("socket", &[inet | 1 << 32, raw | 1 << 40, 1 << 50], EPERM);
        }
        default("socket", &[inet, 5, 0], EPROTONOSUPPORT); // SCTP by its type
        default("socket", &[inet, 6, 0], EPROTONOSUPPORT); // DCCP by its type
        default("socket", &[inet, 1, 132], EPROTONOSUPPORT); // SCTP
        default("socket", &[inet, 1, 262], EPROTONOSUPPORT); // MPTCP; Go then uses TCP
        default("socket", &[inet, 2, 1], EPROTONOSUPPORT); // ICMP
    }
    default("socket", &[16, 3 | flags, 0], ALLOW);
    for protocol in 1..32 {
        default("socket", &[16, 3, protocol], EAFNOSUPPORT);
    }
    for family in (0..64).filter(|family| ![1, 2, 10, 16].contains(family)) {
        default("socket", &[family, 1, 0], EAFNOSUPPORT);
        default("socket", &[family, 3, 0], EAFNOSUPPORT);
    }
}

#[test]
fn socket_pairs_are_unix_only() {
    default("socketpair", &[1, 1], ALLOW);
    for family in (0..64).filter(|family| *family != 1) {
        default("socketpair", &[family, 1], EAFNOSUPPORT);
    }
}

#[test]
fn terminal_injection_is_refused_with_any_high_bits() {
    for request in [0x5412, 0x541c, 0x541d, 0x5423] {
        for high in [0, 1 << 32, 1 << 63, 0xffff_ffff_0000_0000] {
            default("ioctl", &[0, request | high], EPERM);
        }
    }
    for request in [0x5401, 0x5402, 0x5413, 0x5414, 0x541b, 0x5421, 0x5413, 0x40_5412] {
        default("ioctl", &[0, request], ALLOW);
    }
}

/// Calls with a mode, its position, and the arguments that make it effective.
const WITH_MODE: [(&str, usize, [u64; 4]); 12] = [
    ("chmod", 1, [1, 0, 0, 0]),
    ("fchmod", 1, [1, 0, 0, 0]),
    ("fchmodat", 2, [1, 1, 0, 0]),
    ("fchmodat2", 2, [1, 1, 0, 0]),
    ("mkdir", 1, [1, 0, 0, 0]),
    ("mkdirat", 2, [1, 1, 0, 0]),
    ("mknod", 1, [1, 0, 0, 0]),
    ("mknodat", 2, [1, 1, 0, 0]),
    ("creat", 1, [1, 0, 0, 0]),
    ("open", 2, [1, 0o101, 0, 0]),
    ("openat", 3, [1, 1, 0o101, 0]),
    ("openat", 3, [1, 1, 0o20_200_002, 0]), // O_TMPFILE
];

#[test]
fn set_id_bits_are_refused_wherever_a_mode_is_given() {
    for (name, position, mut values) in WITH_MODE {
        for mode in [0o4755, 0o2755, 0o6777, 0o4000, 0xdead_0000_0000 | 0o4755] {
            values[position] = mode;
            default(name, &values, EPERM);
        }
        for mode in [0o755, 0o644, 0, 0o1777] {
            values[position] = mode;
            default(name, &values, ALLOW);
        }
    }
}

#[test]
fn open_ignores_the_mode_when_it_creates_no_file() {
    for flags in [0, 1, 2, 0o200_000, 0o2_000_000, 0o10_000_000] {
        default("open", &[1, flags, 0o6777], ALLOW);
        default("openat", &[1, 1, flags, u64::MAX], ALLOW);
    }
}

#[test]
fn device_nodes_are_not_created() {
    for kind in [0o020_000, 0o060_000] {
        default("mknod", &[1, kind | 0o666, 0x103], EPERM);
        default("mknodat", &[1, 1, kind | 0o666, 0x103], EPERM);
    }
    for kind in [0, 0o010_000, 0o100_000, 0o140_000] {
        default("mknod", &[1, kind | 0o666], ALLOW);
        default("mknodat", &[1, 1, kind | 0o666], ALLOW);
    }
}

#[test]
fn whiteouts_are_not_created() {
    for flags in [4, 5, 6, 4 | 1 << 32] {
        default("renameat2", &[1, 1, 1, 1, flags], EPERM);
    }
    for flags in [0, 1, 2, 1 << 34] {
        default("renameat2", &[1, 1, 1, 1, flags], ALLOW);
    }
}

#[test]
fn watches_report_changes_but_not_opens_and_reads() {
    let all_events = 0xfff;
    for mask in [1, 0x10, 0x20, all_events, 0x0100_0020, 0x20 | 1 << 32] {
        default("inotify_add_watch", &[1, 1, mask], EPERM);
        let own_kernel = Options { watch_reads: true, ..Options::default() };
        check(&own_kernel, "inotify_add_watch", &[1, 1, mask], ALLOW);
    }
    let of_libuv = 0x2 | 0x4 | 0xc0 | 0x100 | 0x200 | 0x400 | 0x800;
    let of_tail = 0x2 | 0x4 | 0x400 | 0x800;
    for mask in [2, 4, 8, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800, of_libuv, of_tail, 0x0100_0002] {
        default("inotify_add_watch", &[1, 1, mask], ALLOW);
    }
}

#[test]
fn a_descriptor_changes_nothing_for_other_users_of_the_file() {
    let few_buffers = Options { deny_large_buffers: true, ..Options::default() };
    // F_SETLEASE, F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT, F_SETDELEG.
    for command in [1024, 1026, 1036, 1038, 1040, 1024 | 1 << 32] {
        default("fcntl", &[3, command, 1], EPERM);
        check(&few_buffers, "fcntl", &[3, command, 1], EPERM);
    }
    // Flags, locks of both kinds, duplicates, the size of a pipe, seals.
    for command in [1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1025, 1030, 1031, 1033, 1034] {
        default("fcntl", &[3, command, 1], ALLOW);
    }
    check(&few_buffers, "fcntl", &[3, 1031, 1], EPERM);
}

#[test]
fn the_shared_page_cache_is_neither_queried_nor_emptied() {
    default("cachestat", &[3, 1, 1, 0], ENOSYS);
    default("preadv2", &[3, 1, 1, 0, 0, 8], EOPNOTSUPP);
    default("preadv2", &[3, 1, 1, 0, 0, 9 | 1 << 32], EOPNOTSUPP);
    default("preadv2", &[3, 1, 1, 0, 0, 0], ALLOW);
    default("preadv2", &[3, 1, 1, 0, 0, 1], ALLOW);
    default("fadvise64", &[3, 0, 0, 4], PRETEND);
    for advice in [0, 1, 2, 3, 5] {
        default("fadvise64", &[3, 0, 0, advice], ALLOW);
    }
}

#[test]
fn whole_file_systems_are_not_written_out() {
    default("sync", &[], PRETEND);
    default("syncfs", &[3], ENOSYS);
    for name in ["fsync", "fdatasync", "msync", "sync_file_range"] {
        default(name, &[3], ALLOW);
    }
}

#[test]
fn file_systems_take_no_requests_that_change_or_map_a_file() {
    let refused = [
        1,           // FIBMAP
        0x4008_6602, // FS_IOC_SETFLAGS
        0x4004_6602, // the same for 32 bits
        0x401c_5820, // FS_IOC_FSSETXATTR
        0xc020_660b, // FS_IOC_FIEMAP
        0x4080_6685, // FS_IOC_ENABLE_VERITY
        0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
        0xc050_6617, // FS_IOC_ADD_ENCRYPTION_KEY
        0xc004_5877, // FIFREEZE
        0xc018_5879, // FITRIM
        0x5000_940e, // BTRFS_IOC_SUBVOL_CREATE
        0x9408,      // BTRFS_IOC_SYNC
    ];
    for request in refused {
        default("ioctl", &[3, request], EPERM);
        default("ioctl", &[3, request | 1 << 32], EPERM);
    }
    // Flags read, files cloned and compared; FIONREAD, FIONBIO, FIOCLEX, FIOASYNC, FIGETBSZ, TCGETS2.
    for request in [
        0x8008_6601,
        0x801c_581f,
        0x4004_9409,
        0x4020_940d,
        0xc018_9436,
        0x541b,
        0x5421,
        0x5451,
        0x5452,
        2,
        0x802c_542a,
    ] {
        default("ioctl", &[3, request], ALLOW);
    }
}

#[test]
fn exec_tag_limits_cannot_be_changed() {
    default("setrlimit", &[15, 0x7fff_0000], EPERM);
    default("setrlimit", &[15 | 1 << 32, 0x7fff_0000], EPERM);
    for new in [1, 1 << 32, 0x7fff_0000_0000, u64::MAX] {
        default("prlimit64", &[0, 15, new], EPERM);
        default("prlimit64", &[0, 15 | 1 << 32, new], EPERM);
        default("prlimit64", &[0, 4, new], PRETEND);
        default("prlimit64", &[0, 7, new], ALLOW);
        default("prlimit64", &[1, 7, new], EPERM);
        default("prlimit64", &[1, 4, new], EPERM);
    }
    default("setrlimit", &[4, 0x7fff_0000], PRETEND);
    default("setrlimit", &[7, 0x7fff_0000], ALLOW);
    default("prlimit64", &[0, 15, 0, 0x7fff_0000], ALLOW);
    default("prlimit64", &[7, 15, 0, 0x7fff_0000], ALLOW);
    default("prlimit64", &[0, 4, 0, 0x7fff_0000], ALLOW);
    default("getrlimit", &[15, 0x7fff_0000], ALLOW);
}

#[test]
fn exec_tag_is_set_only_with_its_key() {
    let options = Options { tag_key: Some(super::KEY), ..Options::default() };
    let (process, resource) = super::KEY.arguments();
    for new in [1, 1 << 32, u64::MAX] {
        check(&options, "prlimit64", &[process, resource, new], ALLOW);
        check(&options, "prlimit64", &[process ^ 1 << 32, resource, new], EPERM);
        check(&options, "prlimit64", &[process, resource ^ 1 << 63, new], EPERM);
        check(&options, "prlimit64", &[0, resource, new], EPERM);
        check(&options, "prlimit64", &[process, 15, new], EPERM);
        check(&options, "prlimit64", &[0, 15, new], EPERM);
        // The key allows nothing else.
        check(&options, "prlimit64", &[process, resource ^ 15 ^ 7, new], EPERM);
        check(&options, "prlimit64", &[0, 4, new], PRETEND);
        check(&options, "setrlimit", &[15, new], EPERM);
        check(&options, "setrlimit", &[resource, new], EPERM);
    }
    assert!(super::TagKey::new(0).arguments().0 >> 32 > 0);
    assert!(super::TagKey::new(0).arguments().1 >> 32 > 0);
}

#[test]
fn pid_1_is_out_of_reach() {
    // Signals, handles, and numbers whose upper half the kernel ignores.
    for one in [1, 1 | 1 << 32] {
        for name in "kill tkill rt_sigqueueinfo tgkill rt_tgsigqueueinfo".split(' ') {
            default(name, &[one, 9, 9], EPERM);
        }
        for name in ["tgkill", "rt_tgsigqueueinfo"] {
            default(name, &[7, one, 9], EPERM);
        }
        default("sched_setaffinity", &[one, 8], EPERM);
    }
    for name in "kill tkill rt_sigqueueinfo tgkill rt_tgsigqueueinfo".split(' ') {
        for other in [0, 2, 4711, (-4711i64).cast_unsigned(), u64::MAX] {
            default(name, &[other, 9, 9], ALLOW);
        }
    }
    default("sched_setaffinity", &[0, 8], ALLOW);
    for other in [1, 2, 4711, u64::MAX] {
        for name in ["sched_setscheduler", "sched_setattr", "sched_setparam"] {
            default(name, &[other], EPERM);
            default(name, &[0], ALLOW);
        }
        default("setpriority", &[0, other, 19], EPERM);
        default("ioprio_set", &[1, other, 0x6000], EPERM);
        if other > 1 {
            default("sched_setaffinity", &[other, 8], PRETEND);
        }
    }
    default("setpriority", &[0, 0, 19], ALLOW);
    default("ioprio_set", &[1, 0, 0x6000], ALLOW);
    // A group, or all processes of the user, process 1 among them.
    for who in [0, 1, 1000] {
        for (which, io_which) in [(1, 2), (2, 3)] {
            default("setpriority", &[which, who, 19], EPERM);
            default("ioprio_set", &[io_which, who, 0x6000], EPERM);
        }
    }
}

#[test]
fn prctl_and_personality_are_restricted() {
    for option in [35, 62, 67, 35 | 1 << 32] {
        default("prctl", &[option], EPERM);
    }
    for option in [1, 4, 15, 22, 38, 59, 0x5961_6d61, 0x5356_4d41] {
        default("prctl", &[option], ALLOW);
    }
    for persona in [0, 0xffff_ffff, u64::MAX] {
        default("personality", &[persona], ALLOW);
    }
    for persona in [8, 0x0004_0000, 0x0040_0000, 0x0040_0000 | 1 << 32] {
        default("personality", &[persona], EPERM);
    }
}

#[test]
fn memory_stays_in_reach_of_its_limit() {
    default("mmap", &[0, 4096, 3, 0x4_0022], ENOMEM);
    default("memfd_create", &[1, 4], ENOMEM);
    default("madvise", &[0, 4096, 12], EINVAL);
    default("mmap", &[0, 4096, 3, 0x22], ALLOW);
    default("mmap", &[0, 4096, 3, 0x21], ALLOW);
    default("madvise", &[0, 4096, 4], ALLOW);
    default("memfd_create", &[1, 1], ALLOW);
}

#[test]
fn options_refuse_more() {
    let memfd = Options { deny_memfd: true, ..Options::default() };
    check(&memfd, "memfd_create", &[1, 1], EPERM);
    check(&memfd, "shmget", &[], ALLOW);
    let affinity = Options { deny_affinity: true, ..Options::default() };
    check(&affinity, "sched_setaffinity", &[], EPERM);
    check(&affinity, "sched_getaffinity", &[], ALLOW);
    let shared = Options { deny_shared_memory: true, ..Options::default() };
    check(&shared, "shmget", &[], EPERM);
    for flags in [0x21, 0x23, 0x8021, 0x21 | 1 << 32] {
        check(&shared, "mmap", &[0, 4096, 3, flags], EPERM);
    }
    for flags in [0x01, 0x02, 0x03, 0x22, 0x4022] {
        check(&shared, "mmap", &[0, 4096, 3, flags], ALLOW);
    }
    check(&shared, "memfd_create", &[1, 1], ALLOW);
    let kernel = Options { deny_kernel_memory: true, ..Options::default() };
    for name in ["semget", "msgget"] {
        check(&kernel, name, &[], EPERM);
    }
    for name in ["seccomp", "sendfile", "splice", "tee", "vmsplice"] {
        check(&kernel, name, &[], EINVAL);
    }
    check(&kernel, "prctl", &[22, 2], EINVAL);
    check(&kernel, "landlock_create_ruleset", &[], EOPNOTSUPP);
    check(&kernel, "prctl", &[15], ALLOW);
    let buffers = Options { deny_large_buffers: true, ..Options::default() };
    check(&buffers, "setsockopt", &[3, 1, 60], EPERM);
}

#[test]
fn kernel_memory_outside_every_limit_is_refused() {
    default("prctl", &[78, 1, 1 << 24], EINVAL);
    for option in [35, 39, 42, 46, 48] {
        default("setsockopt", &[3, 0, option], ENODEV);
    }
    for option in [20, 27, 42, 46, 48] {
        default("setsockopt", &[3, 41, option], ENODEV);
    }
    default("setsockopt", &[3, 41, 32], EPERM);
    default("setsockopt", &[3, 17, 1], PRETEND);
    for name in ["setxattr", "lsetxattr", "fsetxattr"] {
        for (size, expected) in [(0, ALLOW), (20, ALLOW), (127, ALLOW), (128, EOPNOTSUPP), (65_536, EOPNOTSUPP)] {
            default(name, &[3, 0, 0, size, 0], expected);
        }
    }
    default("setxattrat", &[], ENOSYS);
    for option in [26, 50, 51, 52] {
        default("setsockopt", &[3, 1, option], ENOMEM);
        check(&Options { deny_large_buffers: true, ..Options::default() }, "setsockopt", &[3, 1, option], ENOMEM);
    }
    for (level, option) in [(41, 6), (41, 54), (41, 55), (41, 57), (41, 59), (6, 14), (6, 32), (6, 38)] {
        default("setsockopt", &[3, level, option], EPERM);
    }
    // Setting the receive buffer seems to succeed.
    default("setsockopt", &[3, 1, 8], PRETEND);
    default("setsockopt", &[3, 1, 33], PRETEND);
    default("setsockopt", &[3, 1, 13], PRETEND);
    for (level, option) in [(1, 2), (1, 7), (1, 20), (6, 1), (6, 42), (41, 26), (0, 1), (17, 103)] {
        default("setsockopt", &[3, level, option], ALLOW);
    }
    for (name, values) in [
        ("sendto", [3, 0, 0, 0x8000, 0, 0]),
        ("sendmmsg", [3, 0, 0, 0xc000, 0, 0]),
        ("sendmsg", [3, 0, 0x8040, 0, 0, 0]),
        ("splice", [3, 0, 4, 0, 64, 5]),
    ] {
        default(name, &values, EINVAL);
        default(name, &[3, 0, 0x4000, 0x4000, 64, 1], ALLOW);
    }
    // A thread without CLONE_FILES would have descriptors that no listing of its process shows.
    default("clone", &[0x003d_0f00 & !0x400], EPERM);
    default("clone", &[0x0001_0000 | 0x100 | 0x800], EPERM);
    default("clone", &[0x0001_0000 | 0x100 | 0x800 | 0x400], ALLOW);
    // A process that shares its descriptors would leave locks behind that are listed with no process.
    default("clone", &[0x0000_4511], EPERM);
    default("clone", &[0x400 | 17], EPERM);
    for (flags, expected) in [(0, ALLOW), (2, EINVAL), (4, ALLOW), (6, EINVAL), (2 | 1 << 32, EINVAL)] {
        default("close_range", &[3, 9, flags], expected);
    }
}

#[test]
fn a_process_among_others_reaches_itself_only() {
    for arch in Arch::ALL {
        let mut program = compile_lone(arch);
        program.belongs_to(4711);
        let verdict = |name: &str, values: &[u64]| {
            let number = number(arch, name).unwrap_or_else(|| panic!("{name} is no call"));
            run(&program, &Call::new(arch, number, arguments(values)))
        };
        // Calls that a program needs are allowed, as for guests.
        for name in
            "read write openat mmap futex clone execve exit_group ppoll eventfd2 seccomp rt_sigaction".split(' ')
        {
            assert_eq!(verdict(name, &[]), ALLOW, "{name}");
        }
        // Calls that guests may not make are refused as well.
        for name in "ptrace process_vm_writev bpf mount setns unshare io_uring_setup keyctl pidfd_getfd".split(' ') {
            assert_eq!(verdict(name, &[]), EPERM, "{name}");
        }
        for name in ["kill", "tgkill"] {
            assert_eq!(verdict(name, &[4711, 4712, 9]), ALLOW, "{name}");
            // Groups, all processes, the placeholder of the process id, and numbers whose upper half the kernel
            // ignores.
            for other in [0, 1, 4712, u64::MAX, (-4711i64).cast_unsigned(), 0x7fff_ff17] {
                assert_eq!(verdict(name, &[other, 9]), EPERM, "{name} {other}");
            }
            assert_eq!(verdict(name, &[0x1_0000_1267, 9]), ALLOW, "{name}: the kernel takes this for 4711");
        }
        let others = "tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal setpriority ioprio_set
            sched_setaffinity sched_setattr sched_setparam sched_setscheduler";
        for name in others.split_whitespace() {
            assert_eq!(verdict(name, &[4711, 0, 0]), EPERM, "{name}");
        }
        assert_eq!(verdict("fcntl", &[3, 3]), ALLOW);
        assert_eq!(verdict("ioctl", &[3, 0x5401]), ALLOW);
        for (name, command) in [("fcntl", 8), ("fcntl", 15), ("ioctl", 0x8901), ("ioctl", 0x8902), ("ioctl", 0x5412)] {
            assert_eq!(verdict(name, &[3, command, 1]), EPERM, "{name} {command:#x}");
        }
    }
}

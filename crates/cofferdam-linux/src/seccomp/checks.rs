//! Verdicts that depend on arguments. The numbers below are the same on x86_64 and aarch64.
use super::rule::{Action, Case, Test, Verdict, any_bit, errno, field_one_of, one_of};

pub(super) const EPERM: Action = errno(libc::EPERM);
pub(super) const ENOSYS: Action = errno(libc::ENOSYS);
const ENOMEM: Action = errno(libc::ENOMEM);
pub(super) const EINVAL: Action = errno(libc::EINVAL);
const ENODEV: Action = errno(libc::ENODEV);
pub(super) const EOPNOTSUPP: Action = errno(libc::EOPNOTSUPP);
const EAFNOSUPPORT: Action = errno(libc::EAFNOSUPPORT);
const EPROTONOSUPPORT: Action = errno(libc::EPROTONOSUPPORT);
const PRETEND: Action = errno(0);

/// Creates a verdict that allows a call except in the listed cases.
const fn allow_except(cases: &'static [Case]) -> Verdict {
    Verdict::ByArguments { cases, otherwise: Action::Allow }
}

const fn case(then: Action, when: &'static [Test]) -> Case {
    Case { when, then }
}

// Namespaces. clone() has the exit signal in the low byte, so CLONE_NEWTIME (0x80) cannot be requested from it.
const CLONE_NEWNS: u32 = 0x0002_0000;
const CLONE_NEWCGROUP: u32 = 0x0200_0000;
const CLONE_NEWUTS: u32 = 0x0400_0000;
const CLONE_NEWIPC: u32 = 0x0800_0000;
const CLONE_NEWUSER: u32 = 0x1000_0000;
const CLONE_NEWPID: u32 = 0x2000_0000;
const CLONE_NEWNET: u32 = 0x4000_0000;
const NEW_NAMESPACE: u32 =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

/// A thread with its own descriptors, which no listing of its process shows.
const CLONE_FILES: u32 = 0x0000_0400;
const CLONE_THREAD: u32 = 0x0001_0000;
/// Threads must share their descriptors, and processes must not. File locks belong to a descriptor table, but are
/// listed with the process that took them: a table that outlives that process would have locks that are not listed.
const DESCRIPTORS_AND_THREADS_APART: Case =
    case(EPERM, &[field_one_of(0, CLONE_THREAD | CLONE_FILES, &[CLONE_THREAD, CLONE_FILES])]);

/// Gives the calling thread a table of descriptors of its own first.
const CLOSE_RANGE_UNSHARE: u32 = 2;
pub(super) const CLOSE_RANGE: Verdict = allow_except(&[case(EINVAL, &[any_bit(2, CLOSE_RANGE_UNSHARE)])]);

const NEW_NAMESPACES: Case = case(EPERM, &[any_bit(0, NEW_NAMESPACE)]);

pub(super) const CLONE: Verdict = allow_except(&[NEW_NAMESPACES, DESCRIPTORS_AND_THREADS_APART]);
/// The verdict on `clone` with notifications of processes but not of threads.
pub(super) const CLONE_IN_QUOTA: Verdict = Verdict::ByArguments {
    cases: &[NEW_NAMESPACES, DESCRIPTORS_AND_THREADS_APART, case(Action::Allow, &[any_bit(0, CLONE_THREAD)])],
    otherwise: Action::Notify,
};

// Sockets.
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const NETLINK_ROUTE: u32 = 0;
const SOCK_TYPE_MASK: u32 = 0xf;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const SOCK_RAW: u32 = 3;
const SOCK_PACKET: u32 = 10;
const IPPROTO_DEFAULT: u32 = 0;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const INET: Test = one_of(0, &[AF_INET, AF_INET6]);

const RAW_SOCKETS: Case = case(EPERM, &[INET, field_one_of(1, SOCK_TYPE_MASK, &[SOCK_RAW, SOCK_PACKET])]);
const UNIX_SOCKETS: Case = case(Action::Allow, &[one_of(0, &[AF_UNIX])]);
const ROUTING_QUERIES: Case = case(Action::Allow, &[one_of(0, &[AF_NETLINK]), one_of(2, &[NETLINK_ROUTE])]);
const TCP_SOCKETS: Case =
    case(Action::Allow, &[INET, socket_type(&[SOCK_STREAM]), one_of(2, &[IPPROTO_DEFAULT, IPPROTO_TCP])]);
const UDP_SOCKETS: Case =
    case(Action::Allow, &[INET, socket_type(&[SOCK_DGRAM]), one_of(2, &[IPPROTO_DEFAULT, IPPROTO_UDP])]);
const OTHER_INET: Case = case(EPROTONOSUPPORT, &[INET]);
/// A raw socket of TCP. The launcher creates one to see the connections that the kernel refuses.
const RAW_TCP: [Test; 3] = [one_of(0, &[AF_INET]), socket_type(&[SOCK_RAW]), one_of(2, &[IPPROTO_TCP])];

pub(super) const SOCKET: Verdict = Verdict::ByArguments {
    cases: &[UNIX_SOCKETS, ROUTING_QUERIES, RAW_SOCKETS, TCP_SOCKETS, UDP_SOCKETS, OTHER_INET],
    otherwise: EAFNOSUPPORT,
};
/// The verdict on `socket` of the early stage. The late one refuses the raw socket.
pub(super) const SOCKET_FOR_BUILDING: Verdict = Verdict::ByArguments {
    cases: &[
        UNIX_SOCKETS,
        ROUTING_QUERIES,
        case(Action::Allow, &RAW_TCP),
        RAW_SOCKETS,
        TCP_SOCKETS,
        UDP_SOCKETS,
        OTHER_INET,
    ],
    otherwise: EAFNOSUPPORT,
};
pub(super) const SOCKET_WITHOUT_RAW: Verdict = allow_except(&[case(EPERM, &RAW_TCP)]);

const fn socket_type(types: &'static [u32]) -> Test {
    field_one_of(1, SOCK_TYPE_MASK, types)
}

pub(super) const SOCKETPAIR: Verdict =
    Verdict::ByArguments { cases: &[case(Action::Allow, &[one_of(0, &[AF_UNIX])])], otherwise: EAFNOSUPPORT };

// Terminals.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const TIOCCONS: u32 = 0x541d;
const TIOCSETD: u32 = 0x5423;

// Requests to file systems, by the letter in their second byte: flags and quotas of inodes, encryption, maps of the
// disk, subvolumes, freezing. Programs need to read an inode's flags and to copy by reference.
const IOCTL_TYPE: u32 = 0xff00;
const FILE_SYSTEM_TYPES: &[u32] = &[0x5800, 0x6600, 0x9400];
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;
/// The request for a file's block map, which has a number of its own.
const FIBMAP: u32 = 1;

const FILE_SYSTEM_READS: Case =
    case(Action::Allow, &[one_of(1, &[FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, FICLONE, FICLONERANGE, FIDEDUPERANGE])]);
const FILE_SYSTEM_CHANGES: Case = case(EPERM, &[field_one_of(1, IOCTL_TYPE, FILE_SYSTEM_TYPES)]);

pub(super) const IOCTL: Verdict = allow_except(&[
    FILE_SYSTEM_READS,
    FILE_SYSTEM_CHANGES,
    case(EPERM, &[one_of(1, &[TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, FIBMAP])]),
]);

// The target of a descriptor's signals: any process of the same user.
const F_SETOWN: u32 = 8;
const F_SETOWN_EX: u32 = 15;
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;

// Commands with which a descriptor, even a read-only one, affects all users of the same file. A lease stops them until
// it is released, and a hint belongs to the file.
const F_SETLEASE: u32 = 1024;
const F_NOTIFY: u32 = 1026;
const F_SET_RW_HINT: u32 = 1036;
const F_SET_FILE_RW_HINT: u32 = 1038;
const F_SETDELEG: u32 = 1040;
const SHARED_FILE: Case =
    case(EPERM, &[one_of(1, &[F_SETLEASE, F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT, F_SETDELEG])]);

pub(super) const FCNTL: Verdict = allow_except(&[SHARED_FILE]);
pub(super) const FCNTL_WITHOUT_OWNERS: Verdict =
    allow_except(&[SHARED_FILE, case(EPERM, &[one_of(1, &[F_SETOWN, F_SETOWN_EX])])]);
pub(super) const IOCTL_WITHOUT_OWNERS: Verdict = allow_except(&[
    FILE_SYSTEM_READS,
    FILE_SYSTEM_CHANGES,
    case(EPERM, &[one_of(1, &[TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, FIBMAP, FIOSETOWN, SIOCSPGRP])]),
]);

/// A placeholder for the process of a program, larger than any process id.
pub(super) const ITSELF: u32 = 0x7fff_ff17;

pub(super) const TO_ITSELF: Verdict =
    Verdict::ByArguments { cases: &[case(Action::Allow, &[one_of(0, &[ITSELF])])], otherwise: EPERM };

// File modes.
const SET_ID_BITS: u32 = 0o6000;
const O_CREAT: u32 = 0o100;
/// The bit that only O_TMPFILE has. The rest of O_TMPFILE is O_DIRECTORY, whose value differs between architectures.
const O_TMPFILE_BIT: u32 = 0o20_000_000;
const S_IFMT: u32 = 0o170_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;

/// Refuses a set-user-id or set-group-id bit in a mode that is argument 1.
pub(super) const MODE_IN_1: Verdict = allow_except(&[case(EPERM, &[any_bit(1, SET_ID_BITS)])]);
/// Refuses such a bit in a mode that is argument 2.
pub(super) const MODE_IN_2: Verdict = allow_except(&[case(EPERM, &[any_bit(2, SET_ID_BITS)])]);
/// Checks the mode only if the call may create a file: the kernel ignores it otherwise, and callers leave garbage
/// there.
pub(super) const OPEN: Verdict =
    allow_except(&[case(EPERM, &[any_bit(1, O_CREAT | O_TMPFILE_BIT), any_bit(2, SET_ID_BITS)])]);
pub(super) const OPENAT: Verdict =
    allow_except(&[case(EPERM, &[any_bit(2, O_CREAT | O_TMPFILE_BIT), any_bit(3, SET_ID_BITS)])]);
pub(super) const MKNOD: Verdict = allow_except(&[
    case(EPERM, &[any_bit(1, SET_ID_BITS)]),
    case(EPERM, &[field_one_of(1, S_IFMT, &[S_IFCHR, S_IFBLK])]),
]);
pub(super) const MKNODAT: Verdict = allow_except(&[
    case(EPERM, &[any_bit(2, SET_ID_BITS)]),
    case(EPERM, &[field_one_of(2, S_IFMT, &[S_IFCHR, S_IFBLK])]),
]);

const RENAME_WHITEOUT: u32 = 4;

pub(super) const RENAMEAT2: Verdict = allow_except(&[case(EPERM, &[any_bit(4, RENAME_WHITEOUT)])]);

// Watching others' use of a file, and the shared page cache.
const IN_ACCESS: u32 = 0x01;
const IN_CLOSE_NOWRITE: u32 = 0x10;
const IN_OPEN: u32 = 0x20;
const POSIX_FADV_DONTNEED: u32 = 4;
const RWF_NOWAIT: u32 = 8;

pub(super) const INOTIFY_ADD_WATCH: Verdict =
    allow_except(&[case(EPERM, &[any_bit(2, IN_ACCESS | IN_CLOSE_NOWRITE | IN_OPEN)])]);
pub(super) const FADVISE: Verdict = allow_except(&[case(PRETEND, &[one_of(3, &[POSIX_FADV_DONTNEED])])]);
pub(super) const PREADV2: Verdict = allow_except(&[case(EOPNOTSUPP, &[any_bit(5, RWF_NOWAIT)])]);
pub(super) const DO_NOTHING: Verdict = Verdict::Always(PRETEND);

// Process attributes.
const PR_SET_MM: u32 = 35;
const PR_SCHED_CORE: u32 = 62;
const PR_SET_MEMORY_MERGE: u32 = 67;

const PR_SET_SECCOMP: u32 = 22;
/// Sets the size of a process's futex hash table, which may be as large as memory.
const PR_FUTEX_HASH: u32 = 78;

const NOT_ONESELF: Case = case(EPERM, &[one_of(0, &[PR_SET_MM, PR_SCHED_CORE, PR_SET_MEMORY_MERGE])]);
const FUTEX_HASH: Case = case(EINVAL, &[one_of(0, &[PR_FUTEX_HASH])]);

pub(super) const PRCTL: Verdict = allow_except(&[NOT_ONESELF, FUTEX_HASH]);
/// See `Options::deny_kernel_memory`.
pub(super) const PRCTL_WITHOUT_FILTERS: Verdict =
    allow_except(&[NOT_ONESELF, FUTEX_HASH, case(EINVAL, &[one_of(0, &[PR_SET_SECCOMP])])]);

const PER_LINUX: u32 = 0;
const PERSONALITY_QUERY: u32 = 0xffff_ffff;

pub(super) const PERSONALITY: Verdict = Verdict::ByArguments {
    cases: &[case(Action::Allow, &[one_of(0, &[PER_LINUX, PERSONALITY_QUERY])])],
    otherwise: EPERM,
};

// Process 1 of a sandbox keeps its limits and has the guests' user. The kernel shields it against signals from inside
// its namespace, but not against a scheduling class in which it never runs. Process ids are those of the sandbox's
// namespace.
const INIT: u32 = 1;
const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;
const OWN: u32 = 0;

/// Refuses process 1 as argument 0, a process or thread.
pub(super) const NOT_INIT: Verdict = allow_except(&[case(EPERM, &[one_of(0, &[INIT])])]);
/// Refuses process 1 as argument 0, a process, or argument 1, a thread.
pub(super) const NOT_INIT_OR_ITS_THREAD: Verdict =
    allow_except(&[case(EPERM, &[one_of(0, &[INIT])]), case(EPERM, &[one_of(1, &[INIT])])]);
/// Allows scheduling of the caller only, by the number 0.
pub(super) const SCHEDULE_OWN: Verdict =
    Verdict::ByArguments { cases: &[case(Action::Allow, &[one_of(0, &[OWN])])], otherwise: EPERM };
/// Allows the same if argument 0 is the kind of argument 1: a process, a group or a user.
pub(super) const PRIORITY_OWN: Verdict = Verdict::ByArguments {
    cases: &[case(Action::Allow, &[one_of(0, &[PRIO_PROCESS]), one_of(1, &[OWN])])],
    otherwise: EPERM,
};
pub(super) const IO_PRIORITY_OWN: Verdict = Verdict::ByArguments {
    cases: &[case(Action::Allow, &[one_of(0, &[IOPRIO_WHO_PROCESS]), one_of(1, &[OWN])])],
    otherwise: EPERM,
};
/// glibc binds a new thread by its id before it runs, and fails to create the thread if that fails. So the call seems
/// to succeed, and the thread stays unbound.
pub(super) const AFFINITY_OWN: Verdict = Verdict::ByArguments {
    cases: &[case(Action::Allow, &[one_of(0, &[OWN])]), case(EPERM, &[one_of(0, &[INIT])])],
    otherwise: PRETEND,
};

// Resource limits. RLIMIT_RTTIME is the unforgeable exec tag. A soft RLIMIT_CORE of exactly 1 stops core dumps into a
// pipe, and programs that lower it to 0 would unknowingly enable them again.
const RLIMIT_CORE: u32 = 4;
pub(super) const RLIMIT_RTTIME: u32 = 15;

/// Another process may be the init, which has the same user: without descriptors it could not find processes to kill.
const OTHERS_LIMITS: Case = case(EPERM, &[Test::NotNull { argument: 0 }, Test::NotNull { argument: 2 }]);

pub(super) const SETRLIMIT: Verdict =
    allow_except(&[case(EPERM, &[one_of(0, &[RLIMIT_RTTIME])]), case(PRETEND, &[one_of(0, &[RLIMIT_CORE])])]);
pub(super) const PRLIMIT: Verdict = allow_except(&[
    OTHERS_LIMITS,
    case(EPERM, &[one_of(1, &[RLIMIT_RTTIME]), Test::NotNull { argument: 2 }]),
    case(PRETEND, &[one_of(1, &[RLIMIT_CORE]), Test::NotNull { argument: 2 }]),
]);

// Calls that create kernel objects without a memory limit; see `Options::quotas`.
const F_SETLK: u32 = 6;
const F_SETLKW: u32 = 7;
const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;

/// Commands that lock and unlock ranges of files. An unlock may split a range.
pub(super) const FCNTL_IN_QUOTA: Verdict =
    allow_except(&[case(Action::Notify, &[one_of(1, &[F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW])])]);
pub(super) const SOCKET_IN_QUOTA: Verdict =
    allow_except(&[case(Action::Notify, &[one_of(0, &[AF_NETLINK])]), case(EPERM, &RAW_TCP)]);
pub(super) const LISTEN_IN_QUOTA: Verdict = Verdict::Always(Action::Notify);

const SECCOMP_SET_MODE_FILTER: u32 = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: u32 = 8;

/// A guest's own listener would get the notifications instead of the sandbox's. The kernel allows one listener, and so
/// does this filter on kernels that may allow more.
pub(super) const SECCOMP_IN_QUOTA: Verdict = allow_except(&[case(
    errno(libc::EBUSY),
    &[one_of(0, &[SECCOMP_SET_MODE_FILTER]), any_bit(1, SECCOMP_FILTER_FLAG_NEW_LISTENER)],
)]);

// Buffers in the kernel; see `Options::deny_large_buffers`.
const F_SETPIPE_SZ: u32 = 1031;
const SOL_SOCKET: u32 = 1;
const SO_SNDBUF: u32 = 7;
const SO_RCVBUF: u32 = 8;
const SO_SNDBUFFORCE: u32 = 32;
const SO_RCVBUFFORCE: u32 = 33;

pub(super) const FCNTL_WITHOUT_PIPE_SIZE: Verdict =
    allow_except(&[SHARED_FILE, case(EPERM, &[one_of(1, &[F_SETPIPE_SZ])])]);
const SO_ZEROCOPY: u32 = 60;
// Memberships of multicast groups, which the kernel keeps for the network and does not charge. A sandbox has only its
// loopback interface, which receives nothing.
const SOL_IP: u32 = 0;
const SOL_IPV6: u32 = 41;
const SOL_UDP: u32 = 17;
const IP_MEMBERSHIPS: &[u32] = &[35, 39, 41, 42, 46, 48];
const IPV6_MEMBERSHIPS: &[u32] = &[20, 27, 42, 46, 48];
/// Flow labels come from a table that the whole host shares.
const IPV6_FLOWLABEL_MGR: u32 = 32;
/// Keeps unsent data in buffers that no limit on sockets counts.
const UDP_CORK: u32 = 1;

/// Announces more data: a datagram waits in its sender for it.
const MSG_MORE: u32 = 0x8000;
const SPLICE_F_MORE: u32 = 4;

pub(super) const SEND_FLAGS_IN_2: Verdict = allow_except(&[case(EINVAL, &[any_bit(2, MSG_MORE)])]);
pub(super) const SEND_FLAGS_IN_3: Verdict = allow_except(&[case(EINVAL, &[any_bit(3, MSG_MORE)])]);
pub(super) const SPLICE: Verdict = allow_except(&[case(EINVAL, &[any_bit(5, SPLICE_F_MORE)])]);

const MEMBERSHIPS: Case = case(ENODEV, &[one_of(1, &[SOL_IP]), one_of(2, IP_MEMBERSHIPS)]);
const MEMBERSHIPS_6: Case = case(ENODEV, &[one_of(1, &[SOL_IPV6]), one_of(2, IPV6_MEMBERSHIPS)]);
const FLOW_LABELS: Case = case(EPERM, &[one_of(1, &[SOL_IPV6]), one_of(2, &[IPV6_FLOWLABEL_MGR])]);
const CORK: Case = case(PRETEND, &[one_of(1, &[SOL_UDP]), one_of(2, &[UDP_CORK])]);

const SO_LINGER: u32 = 13;
/// The last close of a socket would wait for its peer. That close may be the init's, when it inspects a descriptor or
/// listens on it.
const LINGER: Case = case(PRETEND, &[one_of(1, &[SOL_SOCKET]), one_of(2, &[SO_LINGER])]);

/// Options whose memory the kernel does not charge: programs that filter packets, headers of any length for outgoing
/// packets, and keys that sign TCP segments.
const SO_FILTERS: &[u32] = &[26, 50, 51, 52];
const IPV6_HEADERS: &[u32] = &[6, 54, 55, 57, 59];
const SOL_TCP: u32 = 6;
const TCP_KEYS: &[u32] = &[14, 32, 38];
const FILTERS: Case = case(ENOMEM, &[one_of(1, &[SOL_SOCKET]), one_of(2, SO_FILTERS)]);
const HEADERS: Case = case(EPERM, &[one_of(1, &[SOL_IPV6]), one_of(2, IPV6_HEADERS)]);
const KEYS: Case = case(EPERM, &[one_of(1, &[SOL_TCP]), one_of(2, TCP_KEYS)]);

/// A listening socket passes its size on to connections that wait to be accepted, and netlink fills a buffer of this
/// size. The kernel charges neither.
const RECEIVE_BUFFER: Case = case(PRETEND, &[one_of(1, &[SOL_SOCKET]), one_of(2, &[SO_RCVBUF, SO_RCVBUFFORCE])]);

pub(super) const SETSOCKOPT: Verdict =
    allow_except(&[MEMBERSHIPS, MEMBERSHIPS_6, FLOW_LABELS, CORK, RECEIVE_BUFFER, LINGER, FILTERS, HEADERS, KEYS]);
pub(super) const SETSOCKOPT_WITHOUT_BUFFERS: Verdict = allow_except(&[
    MEMBERSHIPS,
    MEMBERSHIPS_6,
    FLOW_LABELS,
    CORK,
    LINGER,
    FILTERS,
    HEADERS,
    KEYS,
    case(PRETEND, &[one_of(1, &[SOL_SOCKET]), one_of(2, &[SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE])]),
    case(EPERM, &[one_of(1, &[SOL_SOCKET]), one_of(2, &[SO_ZEROCOPY])]),
]);

/// The bits of sizes of 128 bytes and more. The kernel keeps an access control list of any size, and charges none.
const LARGE_ATTRIBUTE: u32 = !0x7f;
pub(super) const SETXATTR: Verdict = allow_except(&[case(EOPNOTSUPP, &[any_bit(3, LARGE_ATTRIBUTE)])]);

// Memory.
const MAP_TYPE: u32 = 0x0f;
const MAP_SHARED: u32 = 0x01;
const MAP_SHARED_VALIDATE: u32 = 0x03;
const MAP_ANONYMOUS: u32 = 0x20;
const MAP_HUGETLB: u32 = 0x0004_0000;
const MADV_MERGEABLE: u32 = 12;
const MFD_HUGETLB: u32 = 0x0004;

const HUGE_PAGES: Case = case(ENOMEM, &[any_bit(3, MAP_HUGETLB)]);

pub(super) const MMAP: Verdict = allow_except(&[HUGE_PAGES]);
pub(super) const MMAP_WITHOUT_SHARED: Verdict = allow_except(&[
    HUGE_PAGES,
    case(EPERM, &[any_bit(3, MAP_ANONYMOUS), field_one_of(3, MAP_TYPE, &[MAP_SHARED, MAP_SHARED_VALIDATE])]),
]);
pub(super) const MADVISE: Verdict = allow_except(&[case(EINVAL, &[one_of(2, &[MADV_MERGEABLE])])]);
pub(super) const MEMFD_CREATE: Verdict = allow_except(&[case(ENOMEM, &[any_bit(1, MFD_HUGETLB)])]);

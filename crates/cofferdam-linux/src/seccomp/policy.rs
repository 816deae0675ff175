//! The verdicts on system calls: the allowlist, changes by options, and calls that are not on the list.
use std::fmt;

use super::arch::Arch;
use super::checks::{
    CLONE, CLONE_IN_QUOTA, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, FCNTL_IN_QUOTA, FCNTL_WITHOUT_OWNERS,
    FCNTL_WITHOUT_PIPE_SIZE, IOCTL_WITHOUT_OWNERS, LISTEN_IN_QUOTA, MMAP_WITHOUT_SHARED, PRCTL_WITHOUT_FILTERS,
    SECCOMP_IN_QUOTA, SETSOCKOPT_WITHOUT_BUFFERS, SOCKET_FOR_BUILDING, SOCKET_IN_QUOTA, SOCKET_WITHOUT_RAW, TO_ITSELF,
};
use super::rule::{Action, Rule, Verdict};
use super::rules::RULES;

/// A known call that the allowlist does not name.
pub(super) const UNLISTED: Verdict = Verdict::Always(EPERM);
const WHY_UNLISTED: &str = "not on the list: obsolete, of another architecture, or without a known need";
/// A number that is no call, or one newer than these tables: programs then avoid it, as on an older kernel.
pub(super) const UNKNOWN: Verdict = Verdict::Always(ENOSYS);

/// The verdict on a call that a stage leaves to the other one.
pub(super) const ALLOWED: Verdict = Verdict::Always(Action::Allow);

/// Calls that build sandboxes and are forbidden to guests, entirely or with some arguments.
const FOR_BUILDING: &[&str] = &[
    "clone",
    "clone3",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "landlock_create_ruleset",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pidfd_getfd",
    "prctl",
    "prlimit64",
    "sched_setaffinity",
    "seccomp",
    "sethostname",
    "setns",
    "setrlimit",
    "unshare",
];

/// Returns the verdict of the early stage on a call.
pub(super) fn early(name: &str, options: &Options) -> Verdict {
    match name {
        _ if is_for_building(name) => ALLOWED,
        "socket" => SOCKET_FOR_BUILDING,
        _ => verdict(name, options),
    }
}

/// Returns true if the early stage allows a call, and the late one restricts it.
pub(super) fn is_for_building(name: &str) -> bool {
    FOR_BUILDING.contains(&name)
}

/// Returns the verdict of the late stage on a call that creates kernel objects without a memory limit, or a raw socket.
/// Calls that the rest of the allowlist refuses stay refused: an error has precedence over a notification.
///
///
/// The init answers the notifications, so it cannot wait for an answer itself. It makes these calls with its key.
pub(super) fn in_quota(name: &str, options: &Options) -> Option<Verdict> {
    let keyed = |with, without: &'static Verdict| match options.tag_key {
        Some(key) => Verdict::Keyed { key, with, without },
        None => *without,
    };
    match name {
        "socket" if !options.quotas => Some(SOCKET_WITHOUT_RAW),
        "clone" if options.count_processes => Some(keyed(&CLONE, &CLONE_IN_QUOTA)),
        "fork" | "vfork" if options.count_processes => Some(Verdict::Always(Action::Notify)),
        _ if !options.quotas => None,
        "fcntl" => Some(FCNTL_IN_QUOTA),
        "listen" => Some(keyed(&ALLOWED, &LISTEN_IN_QUOTA)),
        "pidfd_getfd" => Some(keyed(&ALLOWED, &UNLISTED)),
        "seccomp" if !options.deny_kernel_memory => Some(SECCOMP_IN_QUOTA),
        "socket" => Some(SOCKET_IN_QUOTA),
        _ => None,
    }
}

/// A random number that a call must contain to set an exec tag.
///
///
/// `prlimit64` takes a process and a resource of 32 bits each in registers of 64. The kernel ignores the upper halves,
/// but a filter sees them: they contain the key. No guest can read the filter or the memory of an init, and there are
/// too many keys to try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TagKey {
    pub(super) process_half: u32,
    pub(super) resource_half: u32,
}

impl TagKey {
    /// Creates a key from 64 random bits.
    #[must_use]
    pub fn new(random: u64) -> Self {
        // No half is ever zero: every other call has zero there.
        Self { process_half: (random >> 32) as u32 | 1, resource_half: random as u32 | 1 }
    }

    /// Returns the sixth argument of the init's own calls that the filter would notify it of.
    #[must_use]
    pub fn joined(self) -> u64 {
        u64::from(self.process_half) << 32 | u64::from(self.resource_half)
    }

    /// Returns the process and resource arguments of `prlimit64` that tag the caller.
    #[must_use]
    pub fn arguments(self) -> (u64, u64) {
        let resource = u64::from(super::checks::RLIMIT_RTTIME);
        (u64::from(self.process_half) << 32, u64::from(self.resource_half) << 32 | resource)
    }
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey")
    }
}

/// Changes to the allowlist: refusals for hosts where nothing else limits these calls, calls that a sandbox's own init
/// needs, and calls that are harmless if the guest has its own kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Refuse `memfd_create`, whose memory is not charged without a memory cgroup.
    pub deny_memfd: bool,
    /// Refuse SysV shared memory and shared anonymous mappings, which outlive or escape a limit on address space.
    pub deny_shared_memory: bool,
    /// Refuse calls that allocate kernel memory which no process shows: SysV semaphores and messages, filters and
    /// Landlock rules of the guest's own, and pages that pipes and sockets only refer to, which may belong to larger
    /// ones.
    pub deny_kernel_memory: bool,
    /// Refuse `sched_setaffinity`, if a share of the processors is enforced by affinity.
    pub deny_affinity: bool,
    /// Keep pipes and socket buffers at their default sizes, if each descriptor is charged with one: setting the size
    /// of a pipe is refused, and setting that of a socket's buffers does nothing.
    pub deny_large_buffers: bool,
    /// Let inotify report opens and reads, if no file is shared with the host: in a VM.
    pub watch_reads: bool,
    /// Notify the filter's listener of file locks, netlink sockets and listening sockets, which it allows up to a
    /// quota. This affects only the late stage: [`compile`](super::compile) ignores it.
    pub quotas: bool,
    /// Notify the filter's listener of new processes, but not of new threads. It requires `quotas`, and affects only
    /// the late stage.
    pub count_processes: bool,
    /// Allow to set RLIMIT_RTTIME with the key: an init tags the processes of each exec with it.
    pub tag_key: Option<TagKey>,
}

/// Returns the verdict on a system call that exists on some architecture.
pub(super) fn verdict(name: &str, options: &Options) -> Verdict {
    changed_by_option(name, options).or(rule(name).map(|rule| rule.verdict)).unwrap_or(UNLISTED)
}

/// Returns the verdict on a call for a process beside others of the host, if it differs.
pub(super) fn lone(name: &str) -> Option<Verdict> {
    match name {
        "kill" | "tgkill" => Some(TO_ITSELF),
        "tkill" | "rt_sigqueueinfo" | "rt_tgsigqueueinfo" | "pidfd_open" | "pidfd_send_signal" | "setpriority"
        | "ioprio_set" | "sched_setaffinity" | "sched_setattr" | "sched_setparam" | "sched_setscheduler" => {
            Some(UNLISTED)
        }
        "fcntl" => Some(FCNTL_WITHOUT_OWNERS),
        "ioctl" => Some(IOCTL_WITHOUT_OWNERS),
        _ => None,
    }
}

/// Returns the allowlist of `arch` without options, in the order of the calls' numbers: name, verdict, reason.
pub fn describe(arch: Arch) -> impl Iterator<Item = (&'static str, String, &'static str)> {
    arch.table().filter_map(|(_, name)| name).map(|name| {
        let (verdict, why) = rule(name).map_or((UNLISTED, WHY_UNLISTED), |rule| (rule.verdict, rule.why));
        (name, verdict.to_string(), why)
    })
}

fn changed_by_option(name: &str, options: &Options) -> Option<Verdict> {
    match name {
        "memfd_create" if options.deny_memfd => Some(Verdict::Always(EPERM)),
        "shmget" if options.deny_shared_memory => Some(Verdict::Always(EPERM)),
        "mmap" if options.deny_shared_memory => Some(MMAP_WITHOUT_SHARED),
        "fcntl" if options.deny_large_buffers => Some(FCNTL_WITHOUT_PIPE_SIZE),
        "setsockopt" if options.deny_large_buffers => Some(SETSOCKOPT_WITHOUT_BUFFERS),
        "inotify_add_watch" if options.watch_reads => Some(ALLOWED),
        "msgget" | "semget" if options.deny_kernel_memory => Some(Verdict::Always(EPERM)),
        // Programs treat this as an old kernel, and avoid these calls.
        "seccomp" | "sendfile" | "splice" | "tee" | "vmsplice" if options.deny_kernel_memory => {
            Some(Verdict::Always(EINVAL))
        }
        "prctl" if options.deny_kernel_memory => Some(PRCTL_WITHOUT_FILTERS),
        // Programs treat this as a kernel in which Landlock is not enabled.
        "landlock_create_ruleset" if options.deny_kernel_memory => Some(Verdict::Always(EOPNOTSUPP)),
        "prlimit64" => options.tag_key.map(Verdict::Tagging),
        "sched_setaffinity" if options.deny_affinity => Some(Verdict::Always(EPERM)),
        _ => None,
    }
}

fn rule(name: &str) -> Option<&'static Rule> {
    RULES.binary_search_by_key(&name, |rule| rule.name).ok().map(|index| &RULES[index])
}

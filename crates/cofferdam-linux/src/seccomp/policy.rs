//! Which verdict a system call gets: the allowlist, what the options change, and what is not on the list.
use std::fmt;

use super::arch::Arch;
use super::checks::{
    CLONE, CLONE_IN_QUOTA, EINVAL, ENOSYS, EPERM, FCNTL_IN_QUOTA, FCNTL_WITHOUT_OWNERS, FCNTL_WITHOUT_PIPE_SIZE,
    IOCTL_WITHOUT_OWNERS, LISTEN_IN_QUOTA, MMAP_WITHOUT_SHARED, PRCTL_WITHOUT_FILTERS, SECCOMP_IN_QUOTA,
    SETSOCKOPT_WITHOUT_BUFFERS, SOCKET_IN_QUOTA, TO_ITSELF,
};
use super::rule::{Action, Rule, Verdict};
use super::rules::RULES;

/// A known call that the allowlist does not name.
pub(super) const UNLISTED: Verdict = Verdict::Always(EPERM);
const WHY_UNLISTED: &str = "not on the list: obsolete, of another architecture, or nobody has shown a need for it";
/// A number that is no call, or one newer than our tables: programs then do without it, as on an older kernel.
pub(super) const UNKNOWN: Verdict = Verdict::Always(ENOSYS);

/// A call that a stage leaves to the other one.
pub(super) const ALLOWED: Verdict = Verdict::Always(Action::Allow);

/// What builds sandboxes and is no guest's business, or is not with all arguments.
const FOR_BUILDING: &[&str] = &[
    "clone",
    "clone3",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
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

/// Whether the early stage allows a call, and the late one judges it.
pub(super) fn is_for_building(name: &str) -> bool {
    FOR_BUILDING.contains(&name)
}

/// Returns the verdict of the late stage on a call that makes kernel objects which no memory limit counts. What the rest of the
/// allowlist refuses stays refused: the kernel obeys an error before a notification.
///
/// An init that answers the notifications, and so cannot wait for an answer, makes these calls with its key.
pub(super) fn in_quota(name: &str, options: &Options) -> Option<Verdict> {
    let keyed = |with, without: &'static Verdict| match options.mark_key {
        Some(key) => Verdict::Keyed { key, with, without },
        None => *without,
    };
    match name {
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

/// A random number that a call must carry to set a mark.
///
/// `prlimit64` takes a process and a resource of 32 bits each in registers of 64. The kernel drops the upper halves, but
/// a filter sees them: the key travels there. Nobody inside can read the filter, nor the memory of an init, and there
/// are too many keys to try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MarkKey {
    pub(super) process_half: u32,
    pub(super) resource_half: u32,
}

impl MarkKey {
    /// A key from 64 random bits.
    #[must_use]
    pub fn new(random: u64) -> Self {
        // No half is ever zero: that is what every other call carries there.
        Self { process_half: (random >> 32) as u32 | 1, resource_half: random as u32 | 1 }
    }

    /// Returns the sixth argument of the init's own calls that the filter would notify it of.
    #[must_use]
    pub fn whole(self) -> u64 {
        u64::from(self.process_half) << 32 | u64::from(self.resource_half)
    }

    /// What `prlimit64` takes as process and resource, to mark the caller.
    #[must_use]
    pub fn arguments(self) -> (u64, u64) {
        let resource = u64::from(super::checks::RLIMIT_RTTIME);
        (u64::from(self.process_half) << 32, u64::from(self.resource_half) << 32 | resource)
    }
}

impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey")
    }
}

/// What differs from the allowlist: refusals for hosts where nothing else bounds what these calls get hold of, what a
/// sandbox's own init needs, and what is harmless where the kernel is the guest's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Refuse `memfd_create`, whose memory is charged to nobody where there is no memory cgroup.
    pub deny_memfd: bool,
    /// Refuse SysV shared memory and shared anonymous mappings, which outlive or escape a limit on address space.
    pub deny_shared_memory: bool,
    /// Refuse what holds memory in the kernel that no process shows: SysV semaphores and messages, filters of the guest's
    /// own, and pages that pipes and sockets only refer to, which may belong to larger ones.
    pub deny_kernel_memory: bool,
    /// Refuse `sched_setaffinity`, where a share of the processors is enforced by affinity.
    pub deny_affinity: bool,
    /// Keep pipes and socket buffers at their default sizes, where each descriptor counts as holding one: setting the
    /// size of a pipe is refused, setting that of a socket's buffers does nothing.
    pub deny_large_buffers: bool,
    /// Let inotify report opens and reads, where no file is shared with anything outside: in a virtual machine.
    pub watch_reads: bool,
    /// Notify the filter's listener of file locks, netlink sockets and listening sockets, which it lets continue up to a
    /// quota. Only the late stage does: [`compile`](super::compile) ignores it.
    pub quotas: bool,
    /// Notify the filter's listener of new processes, but not of new threads. With `quotas` only, and in the late stage.
    pub count_processes: bool,
    /// Let RLIMIT_RTTIME be set by who knows the key: an init, which marks with it what each exec starts.
    pub mark_key: Option<MarkKey>,
}

/// The verdict on a system call that exists on some architecture.
pub(super) fn verdict(name: &str, options: &Options) -> Verdict {
    changed_by_option(name, options).or(rule(name).map(|rule| rule.verdict)).unwrap_or(UNLISTED)
}

/// The verdict on a call for a process that others of the host stand beside, where it differs.
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

/// The allowlist as it applies to `arch` without options, in the order of the calls' numbers: name, verdict, reason.
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
        // Programs take these for an old kernel, and do without.
        "seccomp" | "sendfile" | "splice" | "tee" | "vmsplice" if options.deny_kernel_memory => {
            Some(Verdict::Always(EINVAL))
        }
        "prctl" if options.deny_kernel_memory => Some(PRCTL_WITHOUT_FILTERS),
        "prlimit64" => options.mark_key.map(Verdict::Marking),
        "sched_setaffinity" if options.deny_affinity => Some(Verdict::Always(EPERM)),
        _ => None,
    }
}

fn rule(name: &str) -> Option<&'static Rule> {
    RULES.binary_search_by_key(&name, |rule| rule.name).ok().map(|index| &RULES[index])
}

//! Properties of the calling process, and signals and waits for other processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::thread::JoinHandleExt;

use libc::c_int;
use rustix::process::Pid;

use crate::sys::{check, check_int};

/// A resource of `setrlimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource(u32);

// The C libraries disagree on the numbers' type.
#[allow(clippy::unnecessary_cast)]
impl Resource {
    /// Address space of one process, in bytes.
    pub const ADDRESS_SPACE: Self = Self(libc::RLIMIT_AS as u32);
    /// Core file size in bytes. A limit of exactly 1 also prevents cores that go to a pipe.
    pub const CORE: Self = Self(libc::RLIMIT_CORE as u32);
    /// CPU seconds of one process.
    pub const CPU: Self = Self(libc::RLIMIT_CPU as u32);
    /// Private writable memory of one process, in bytes.
    pub const DATA: Self = Self(libc::RLIMIT_DATA as u32);
    /// Size of one file, in bytes.
    pub const FILE_SIZE: Self = Self(libc::RLIMIT_FSIZE as u32);
    /// Locked memory, in bytes.
    pub const LOCKED_MEMORY: Self = Self(libc::RLIMIT_MEMLOCK as u32);
    /// Bytes in POSIX message queues.
    pub const MESSAGE_QUEUES: Self = Self(libc::RLIMIT_MSGQUEUE as u32);
    /// The number of open descriptors.
    pub const OPEN_FILES: Self = Self(libc::RLIMIT_NOFILE as u32);
    /// The maximum priority of real-time scheduling.
    pub const REAL_TIME_PRIORITY: Self = Self(libc::RLIMIT_RTPRIO as u32);
    /// The ceiling of the nice value, as its distance below 20.
    pub const NICE: Self = Self(libc::RLIMIT_NICE as u32);
    /// Stack of a process's first thread in bytes.
    pub const STACK: Self = Self(libc::RLIMIT_STACK as u32);
    /// The number of tasks of the user in its user namespace.
    pub const TASKS: Self = Self(libc::RLIMIT_NPROC as u32);
    /// Queued signals.
    pub const PENDING_SIGNALS: Self = Self(libc::RLIMIT_SIGPENDING as u32);
}

/// Sets soft and hard limit of the calling process.
pub fn set_limit(resource: Resource, value: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: value, rlim_max: value };
    prlimit(0, resource, Some(&limit)).map(drop)
}

/// Returns a random number of the kernel.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the buffer has the length that is passed.
    let length = unsafe { check(libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0))? };
    if length as usize == bytes.len() {
        Ok(u64::from_ne_bytes(bytes))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Sets the limit to `value`, or to the hard limit if that is lower.
pub fn cap_limit(resource: Resource, value: u64) -> io::Result<()> {
    set_limit(resource, value.min(prlimit(0, resource, None)?.rlim_max))
}

/// Sets the soft limit to `value`, or to the hard limit if that is lower. The hard limit stays.
pub fn set_soft_limit(resource: Resource, value: u64) -> io::Result<()> {
    let rlim_max = hard_limit(resource)?;
    prlimit(0, resource, Some(&libc::rlimit64 { rlim_cur: value.min(rlim_max), rlim_max })).map(drop)
}

/// Drops real-time scheduling and a raised priority that the caller inherited, and the right to obtain them again.
pub fn schedule_as_ordinary() -> io::Result<()> {
    cap_limit(Resource::REAL_TIME_PRIORITY, 0)?;
    cap_limit(Resource::NICE, 0)?;
    // SAFETY: the structure lives through the call; the rest are plain numbers.
    unsafe {
        if matches!(libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
            let parameters: libc::sched_param = std::mem::zeroed();
            check_int(libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters))?;
        }
        // An error looks like -1. A priority of that value is raised as well, so it makes no difference.
        if libc::getpriority(libc::PRIO_PROCESS, 0) < 0 {
            check_int(libc::setpriority(libc::PRIO_PROCESS, 0, 0))?;
        }
    }
    Ok(())
}

/// Returns the soft limit of a process; 0 means the caller.
pub fn limit_of(pid: i32, resource: Resource) -> io::Result<u64> {
    prlimit(pid, resource, None).map(|limit| limit.rlim_cur)
}

/// Returns the hard limit of the calling process.
pub fn hard_limit(resource: Resource) -> io::Result<u64> {
    prlimit(0, resource, None).map(|limit| limit.rlim_max)
}

fn prlimit(pid: i32, resource: Resource, new: Option<&libc::rlimit64>) -> io::Result<libc::rlimit64> {
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both structures live through the call.
    unsafe { check(libc::syscall(libc::SYS_prlimit64, pid, resource.0, new, &mut old))? };
    Ok(old)
}

/// Sets no_new_privs, which is irreversible.
pub fn set_no_new_privileges() -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe { check_int(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).map(drop) }
}

/// Returns true if no_new_privs is set.
pub fn no_new_privileges() -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// Returns true if the calling thread runs under a seccomp filter.
pub fn seccomp_filtered() -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) == 2 }
}

/// Sets whether other processes of the same user may inspect this process (`/proc/PID/mem`, core files).
pub fn set_dumpable(yes: DumpableState) -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe { check_int(libc::prctl(libc::PR_SET_DUMPABLE, yes as libc::c_ulong, 0, 0, 0)).map(drop) }
}

/// The permission to inspect a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpableState {
    /// Its proc files belong to root, and no other user may trace it.
    No = 0,
    /// The default.
    Yes = 1,
}

/// Requests that the kernel kills this process when its parent thread ends. A change of ids clears the request: call it
/// after that.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe { check_int(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)).map(drop) }
}

/// Sets the name that `ps` shows: at most 15 bytes.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: the name is NUL-terminated; the kernel copies at most 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Becomes this user and group without further groups, which is irreversible.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // Use raw calls: libc's versions signal other threads, and there are none.
    // SAFETY: plain numbers and a null pointer.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0usize, std::ptr::null::<u32>()))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Joins a new, empty session keyring, so that none of the caller's keys is reachable.
pub fn new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: u32 = 1;
    // SAFETY: a null name makes an anonymous keyring.
    unsafe { check(libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>())).map(drop) }
}

/// Closes every descriptor that is not in `keep`.
pub fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut from = 0u32;
    for &fd in keep.iter() {
        let fd = fd as u32;
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: the caller promises by calling `close_all_but` that nothing outside `keep` is used again.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) };
}

/// Makes `target` a copy of `fd`, without close-on-exec.
pub fn duplicate_to(fd: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: `target` is one of 0, 1, 2 or a number the caller owns.
    unsafe { check_int(libc::dup2(fd.as_raw_fd(), target)).map(drop) }
}

/// Returns a copy of a descriptor that the parent process passed by its number. The copy is closed on exec.
pub fn copy_inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a plain number; the kernel returns a new descriptor, which has no other owner.
    unsafe { check_int(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3)).map(|copy| OwnedFd::from_raw_fd(copy)) }
}

/// Leaves a descriptor open when a program is executed.
pub fn keep_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: plain numbers; the flag belongs to this process's table alone.
    unsafe { check_int(libc::fcntl(fd, libc::F_SETFD, 0)).map(drop) }
}

/// Leaves no descriptor but the standard three open when a program is executed.
pub fn keep_none_on_exec() -> io::Result<()> {
    // SAFETY: plain numbers; the flags belong to this process's table alone.
    unsafe { check(libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)).map(drop) }
}

/// The state of a process by `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// The parent process; 0 if it is not visible.
    pub parent: u64,
    /// The start time in the kernel's ticks since boot.
    pub start: u64,
    /// True if the process has ended and only waits for its parent to reap it. Until then it keeps its id and start
    /// time, and accepts signals.
    pub over: bool,
}

impl Life {
    /// Reads the state of a process. Returns `None` if it does not exist, or its state is hidden.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Returns true if the process with this id and start time, of this boot and PID namespace, has certainly ended.
    /// Another process may have its id now. A process whose state is hidden may be alive.
    pub fn is_over(pid: u32, start: u64) -> bool {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        match rustix::process::test_kill_process(number) {
            Err(rustix::io::Errno::SRCH) => true,
            _ => Self::of(pid).is_some_and(|life| life.over || life.start != start),
        }
    }

    /// Parses the text of `/proc/PID/stat`.
    pub fn parse(stat: &str) -> Option<Self> {
        // The name is in parentheses, and may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().take(20).collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let dead = matches!(*fields.first()?, "Z" | "X" | "x");
        // A process whose first thread has ended looks dead by its state, but may continue in other threads.
        Some(Self { parent: number(1)?, start: number(19)?, over: dead && number(17)? <= 1 })
    }
}

/// Opens a descriptor of a process, which stays valid even if the process id is reused.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; the descriptor returned is new.
    unsafe { check(libc::syscall(libc::SYS_pidfd_open, pid, 0u32)).map(|fd| OwnedFd::from_raw_fd(fd as RawFd)) }
}

/// Kills the process of a descriptor. It is no error if the process has ended.
pub fn kill_by_pidfd(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a valid descriptor and plain numbers.
    let result = unsafe {
        check(libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<u8>(),
            0u32,
        ))
    };
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// Returns the CPU time of all threads of the process of a descriptor in microseconds, or `None` once it was reaped.
pub fn cpu_micros(pidfd: BorrowedFd<'_>) -> Option<u64> {
    let pid = number_of(pidfd)?;
    // Its id is its own until it is reaped.
    clock_of(pid).filter(|_| number_of(pidfd) == Some(pid))
}

/// Returns the CPU time of a process, its descendants, and those of them that were reaped, in microseconds. A descendant
/// that ends meanwhile may be missing until the next call.
pub fn tree_cpu_micros(pidfd: BorrowedFd<'_>) -> Option<u64> {
    /// The maximum number of visited processes.
    const MAX_VISITED: usize = 65_536;
    let first = number_of(pidfd)?;
    let (mut pending, mut ticks, mut visited) = (vec![first], 0u64, 0);
    while let Some(pid) = pending.pop() {
        visited += 1;
        if visited > MAX_VISITED {
            break;
        }
        ticks = ticks.saturating_add(ticks_of(pid).unwrap_or(0));
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            pending.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    // SAFETY: a plain number.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|ticks| *ticks > 0)?;
    number_of(pidfd).filter(|now| *now == first).map(|_| ticks.saturating_mul(1_000_000) / per_second)
}

/// Returns the clock ticks of a process and of its children that were reaped.
fn ticks_of(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything.
    let fields = text.rsplit_once(')')?.1.split_whitespace();
    // The fields 14 to 17 of the line: user and system time, and those of reaped children.
    Some(fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum())
}

/// Returns the id of the process of a descriptor, or `None` once it was reaped.
fn number_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok().filter(|pid: &i32| *pid > 0)
}

fn clock_of(pid: i32) -> Option<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both write only to their argument, which has the right type.
    let found = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    found.then(|| seconds.saturating_mul(1_000_000).saturating_add(nanos / 1000))
}

/// Sends a signal by process id; -1 means every process that the caller may signal, except itself and process 1.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe { check_int(libc::kill(pid, signal)).map(drop) }
}

/// A child that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Reaped {
    /// Its process id.
    pub pid: i32,
    /// Its raw wait status.
    pub status: i32,
    /// The largest resident size of the child and its reaped children, in bytes.
    pub peak_bytes: u64,
    /// The CPU time of the child and its reaped children, in microseconds.
    pub cpu_micros: u64,
}

/// Reaps one child that has ended, if any. Fails with ECHILD if there are no children.
pub fn reap() -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: the structures live through the call; all-zero is valid for rusage.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = check_int(libc::wait4(-1, &mut status, libc::WNOHANG | libc::__WALL, &mut usage))?;
        (pid, usage)
    };
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Ok((pid > 0).then(|| Reaped {
        pid,
        status,
        peak_bytes: usage.ru_maxrss as u64 * 1024,
        cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
    }))
}

/// Blocks SIGCHLD. Returns a non-blocking descriptor that becomes readable when a child ends.
pub fn child_signal() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; the descriptor returned is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        check_int(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
        check_int(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Pins the calling process and its future children to the first `count` processors that it may use.
pub fn pin_to(count: usize) -> io::Result<()> {
    // SAFETY: the sets live through the calls; CPU_ISSET and CPU_SET stay within them.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        check_int(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed))?;
        let mut chosen: libc::cpu_set_t = std::mem::zeroed();
        let usable = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        for cpu in usable.take(count) {
            libc::CPU_SET(cpu, &mut chosen);
        }
        check_int(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &chosen)).map(drop)
    }
}

/// Moves a process or thread that has just started to another processor than the caller's, if there is one, and then
/// lets the kernel choose again. A fork starts on its parent's processor, and waits there even while other processors
/// are idle.
pub fn start_elsewhere(pid: i32) {
    elsewhere(|chosen, allowed| {
        // SAFETY: the sets live through the calls. A failure changes nothing.
        unsafe {
            libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), chosen);
            libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), allowed);
        }
    });
}

/// Keeps a new thread off the caller's processor for its whole life, if there is another processor. Without this, a
/// thread that wakes for half a millisecond may wait for all of that behind its creator, while another processor is
/// idle.
pub fn keep_thread_elsewhere<T>(thread: &std::thread::JoinHandle<T>) {
    let number = thread.as_pthread_t() as libc::pthread_t;
    elsewhere(|chosen, _| {
        // SAFETY: the handle keeps the number valid; the set lives through the call.
        unsafe { libc::pthread_setaffinity_np(number, size_of::<libc::cpu_set_t>(), chosen) };
    });
}

/// Calls `pin` with a set that contains another processor than the caller's, and the set of all allowed ones.
fn elsewhere(pin: impl Fn(&libc::cpu_set_t, &libc::cpu_set_t)) {
    // SAFETY: the sets live through the calls; CPU_ISSET and CPU_SET stay within them.
    unsafe {
        let own = libc::sched_getcpu();
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if own < 0 || libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed) < 0 {
            return;
        }
        let usable = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        if let Some(other) = usable.into_iter().find(|&cpu| cpu != own as usize) {
            let mut chosen: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(other, &mut chosen);
            pin(&chosen, &allowed);
        }
    }
}

/// Resets every signal to its default action, also those that the caller inherited as ignored. For a process with one
/// thread and without handlers.
pub fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: no handler is set, so none can run. Two signals cannot be changed, and need not be.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Leaves the session of the process's starter, so that no terminal's keys reach it. Does nothing for a process that
/// already leads a group.
pub fn own_session() {
    // SAFETY: takes no arguments.
    unsafe { libc::setsid() };
}

/// Exits at once, without running exit handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(code) }
}

/// Becomes the user and group that the caller's own user namespace maps. Does not change supplementary groups, which
/// the map of an ordinary user forbids.
pub fn become_user_inside((user, group): (u32, u32)) -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, group, group, group))?;
        check(libc::syscall(libc::SYS_setresuid, user, user, user))?;
    }
    Ok(())
}

/// Returns true if the calling process has any child, including ended ones.
pub fn has_children() -> bool {
    // SAFETY: all-zero is valid for siginfo; WNOWAIT leaves the child as it is.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL) == 0
    }
}

/// Returns the number of processors that the calling process may use.
pub fn processors() -> u32 {
    // SAFETY: the set lives through the call.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed) < 0 {
            return 0;
        }
        libc::CPU_COUNT(&allowed) as u32
    }
}

/// Returns a descriptor of the process at the other end of a socket, if the kernel supports that (from 6.5). Otherwise
/// it opens the process id `pid`, which may have been reused if the process ended.
pub fn peer(socket: BorrowedFd<'_>, pid: Pid) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: c_int = 77;
    let mut fd: c_int = -1;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `fd`, and its length to `length`; both live until it returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            std::ptr::from_mut(&mut fd).cast(),
            std::ptr::from_mut(&mut length),
        )
    };
    match check_int(result) {
        // SAFETY: the kernel returned a new descriptor, which has no other owner.
        Ok(_) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
        }
        Err(error) => Err(error),
    }
}

/// Returns true if the process of a descriptor has ended.
pub fn has_ended(process: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    // A process that cannot be polled is not relied on.
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_child_is_over_before_it_is_reaped() {
        let own = Life::of(std::process::id()).unwrap();
        assert!(!own.over);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let living = Life::of(child.id()).unwrap();
        assert!(!living.over && living.start >= own.start);
        assert!(!Life::is_over(child.id(), living.start) && Life::is_over(child.id(), living.start + 1));
        child.kill().unwrap();
        while !Life::of(child.id()).unwrap().over {
            std::thread::yield_now();
        }
        assert_eq!(Life::of(child.id()), Some(Life { over: true, ..living }));
        assert!(Life::is_over(child.id(), living.start), "a zombie");
        child.wait().unwrap();
        assert_eq!(Life::of(child.id()), None);
        assert!(Life::is_over(child.id(), living.start));
        assert!(!Life::is_over(0, 0) && !Life::is_over(u32::MAX, 0), "no id of a process");
    }

    #[test]
    fn process_state_parses_with_any_name() {
        let text = |state: &str, threads: u64| {
            format!("7 (a) Z 1 (b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0\n")
        };
        let life = |state, threads| Life::parse(&text(state, threads)).unwrap();
        assert_eq!(life("R", 1), Life { parent: 1, start: 4711, over: false });
        for state in ["Z", "X"] {
            assert!(life(state, 1).over && life(state, 0).over, "{state}");
            // Its first thread has ended, but not the others.
            assert!(!life(state, 2).over, "{state}");
        }
        for bad in ["", "7 (a", "7 (a) R", "7 (a) Z 1 2 3"] {
            assert_eq!(Life::parse(bad), None, "{bad}");
        }
    }
}

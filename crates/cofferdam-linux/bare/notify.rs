//! Answers to system calls that the filter reports to this process: file locks, netlink sockets, listening sockets, and
//! new processes if their number is limited.
//!
//! The kernel charges none of these to a memory limit and has no limit of its own on their number. The answer depends
//! on the call's number, on arguments in registers, which no other task can change, and on the kernel's counts. The
//! guest itself makes a granted call, so a call that waits for a lock blocks only its own task.

use super::quota::{self, Account, InFlight, Lock, Quota, TaskState};
use super::sys::{self, Fd, Notification, Res};
use super::texts::{self, Path};
use super::watch;

const EAGAIN: i32 = 11;
const ESRCH: i32 = 3;
const ENOLCK: i32 = 37;
const ENOBUFS: i32 = 105;
const ENOSYS: i32 = 38;

/// The quota of process locks. Each call creates at most two, one of them by splitting another: so there are never more
/// than 36,864, and two for each task, of about 200 bytes. Listing locks is slow, because the kernel stops all locking
/// of the host meanwhile, and therefore rare.
const PROCESS_LOCKS: Quota = Quota { max_live: 4096, calls: 16_384, error: ENOLCK };
/// The quota of open file locks. The kernel lists those of the whole host: if others have as many, this sandbox may
/// make only the first `calls` calls. Process locks, which nearly every program uses, are not affected.
const OPEN_FILE_LOCKS: Quota = Quota { max_live: 4096, calls: 4096, error: ENOLCK };
/// The quota of netlink sockets, each with a buffer of 208 KiB for answers, and a request of up to 416 KiB
/// whose answer was not read.
const NETLINK: Quota = Quota { max_live: 32, calls: 16, error: ENOBUFS };
/// The quota of listening sockets, each with 17 connections that wait to be accepted and use 64 KiB.
const LISTENERS: Quota = Quota { max_live: 24, calls: 8, error: ENOBUFS };
/// The maximum of connections in the queue of a listening socket.
pub const MAX_BACKLOG: u32 = 16;

const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;
/// The number of bytes of a list to read at once. Every line is shorter.
const BUFFER: usize = 4096;
/// Time for calls in flight to complete, if a count depends on them: a program that calls `fork` often runs between two
/// calls, and the kernel shows that only at its next clock tick.
const SETTLE_MICROS: u64 = 50_000;
const SETTLE_PAUSE_MICROS: u64 = 1000;
/// Time for one count of the locks that processes hold. Guests may have a million descriptors.
const COUNT_MICROS: u64 = 250_000;
/// The kernel ignores negative descriptors.
const NOTHING: (i32, sys::Ready) = (-1, sys::Ready::Read);

/// The party that limits the queues of listening sockets.
#[derive(Clone, Copy)]
pub enum Backlog {
    /// The kernel limits them by a setting of the network namespace.
    Bounded,
    /// This process calls `listen` instead of the guest, with this key for the filter.
    Shorten(u64),
    /// This process refuses longer queues.
    Refuse,
}

/// The listener of the filter, and the rest of each quota.
pub struct Quotas {
    listener: Fd,
    /// The list of locks, opened before a mount covered it. Without it, locks are counted process by process.
    locks: Option<Fd>,
    backlog: Backlog,
    process_locks: Account,
    open_file_locks: Account,
    netlink: (Account, InFlight),
    listeners: (Account, InFlight),
    /// Listening sockets of this process, which do not count.
    own_listeners: u64,
    max_processes: u64,
    processes: (Account, InFlight),
    processes_refused: u64,
}

impl Quotas {
    /// Creates the quotas before any guest runs. Without `max_processes`, the filter has no notification for new
    /// processes.
    pub fn new(listener: Fd, locks: Option<Fd>, backlog: Backlog, max_processes: Option<u64>) -> Self {
        sys::wake_on_same_processor(listener.number());
        let max_processes = max_processes.unwrap_or(u64::MAX);
        let processes = Quota { max_live: max_processes, calls: 1, error: EAGAIN };
        Self {
            listener,
            locks,
            backlog,
            process_locks: Account::new(PROCESS_LOCKS),
            open_file_locks: Account::new(OPEN_FILE_LOCKS),
            netlink: (Account::new(NETLINK), InFlight::NONE),
            listeners: (Account::new(LISTENERS), InFlight::NONE),
            own_listeners: 0,
            max_processes,
            // The first call is counted as well, because its caller is a process.
            processes: (Account::used_up(processes), InFlight::NONE),
            processes_refused: 0,
        }
    }

    /// Excludes listening sockets of this process from the quota.
    pub fn exclude_listeners(&mut self, count: u64) {
        self.own_listeners = count;
    }

    /// Returns the descriptors that must stay open.
    pub fn numbers(&self) -> [i32; 2] {
        [self.listener.number(), self.locks.as_ref().map_or(-1, Fd::number)]
    }

    /// Returns the number of refused processes, if processes are limited.
    pub fn processes_refused(&self) -> Option<u64> {
        (self.max_processes < u64::MAX).then_some(self.processes_refused)
    }

    /// Returns true if one more process may be started for an exec.
    pub fn allows_process(&mut self) -> bool {
        self.max_processes == u64::MAX || {
            let (_, flight) = &mut self.processes;
            settled(flight, 0, self.max_processes, &processes).is_some_and(|live| live < self.max_processes)
        }
    }

    /// Renews the quota of open file locks while no guest runs, because none can exist then.
    pub fn reset_idle(&mut self) {
        if self.locks.is_none() && !sys::has_children() {
            self.open_file_locks = Account::new(OPEN_FILE_LOCKS);
        }
    }

    /// Answers a single call: a guest that floods this process with calls does not delay its other work for longer.
    pub fn answer_one(&mut self) -> Res<()> {
        let listener = self.listener.number();
        let notification = match sys::notification(listener) {
            Ok(notification) => notification,
            // The task was killed, or a signal interrupted it. In the latter case it repeats the call.
            Err(sys::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let answer = self.decide(&notification);
        match sys::answer(listener, &notification, answer) {
            Err(sys::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn decide(&mut self, notification: &Notification) -> sys::Reply {
        let locks = self.locks.as_ref();
        let error = match notification.number as usize {
            sys::FCNTL => {
                let (account, kind, quota) = match notification.arguments[1] as u32 {
                    F_OFD_SETLK | F_OFD_SETLKW => (&mut self.open_file_locks, Lock::OpenFile, OPEN_FILE_LOCKS),
                    _ => (&mut self.process_locks, Lock::Process, PROCESS_LOCKS),
                };
                account.decide(&sys::now_micros, &mut || match (locks, kind) {
                    (Some(locks), Lock::Process) => {
                        // Locks of others can make the list too long.
                        listed_locks(locks, kind, quota.max_live).or_else(|| held_locks(quota.max_live))
                    }
                    (Some(locks), Lock::OpenFile) => listed_locks(locks, kind, quota.max_live),
                    (None, Lock::Process) => held_locks(quota.max_live),
                    // A file that is in flight between processes has no descriptor.
                    (None, Lock::OpenFile) => None,
                })
            }
            sys::SOCKET => decide_large(&mut self.netlink, notification.task, NETLINK.max_live, &netlink_sockets),
            sys::LISTEN => {
                let own = self.own_listeners;
                let theirs = || listeners().map(|count| count.saturating_sub(own));
                let error = decide_large(&mut self.listeners, notification.task, LISTENERS.max_live, &theirs);
                // The kernel treats negative numbers as the longest queue.
                match self.backlog {
                    Backlog::Bounded => error,
                    _ if error.is_some() || notification.arguments[1] as u32 <= MAX_BACKLOG => error,
                    Backlog::Shorten(key) => return listen(notification, key),
                    Backlog::Refuse => Some(ENOBUFS),
                }
            }
            // The other notifications are for new processes. The filter has them only with such a limit.
            _ if self.max_processes < u64::MAX => {
                let error = decide_large(&mut self.processes, notification.task, self.max_processes, &processes);
                self.processes_refused += u64::from(error.is_some());
                error
            }
            _ => Some(ENOSYS),
        };
        error.map_or(sys::Reply::Continue, sys::Reply::Fail)
    }
}

/// Calls `listen` instead of a guest, with a short queue: the kernel has no setting here that would shorten it.
///
///
/// The socket is the caller's, or another one of the sandbox if the caller changes its descriptors meanwhile. Guests
/// without dumpable memory or with an ended first thread cannot listen.
fn listen(notification: &Notification, key: u64) -> sys::Reply {
    let listened = || -> Res<()> {
        let mut text = [0; BUFFER];
        let status = sys::read_file(Path::new("/proc/", notification.task as u32, "/status").bytes(), &mut text);
        let process = texts::field(status, b"Tgid:").ok_or(ENOBUFS)?;
        let handle = sys::open_process(process as i32)?;
        let socket = sys::take_descriptor(&handle, notification.arguments[0] as i32, key)?;
        sys::listen(&socket, MAX_BACKLOG as usize, key)
    };
    listened().map_or_else(sys::Reply::Fail, |()| sys::Reply::Succeed)
}

/// Decides about a call that creates a large object: calls in flight count as completed.
fn decide_large(
    (account, flight): &mut (Account, InFlight),
    task: i32,
    max_live: u64,
    live: &dyn Fn() -> Option<u64>,
) -> Option<i32> {
    let error = account.decide(&sys::now_micros, &mut || settled(flight, task, max_live, live));
    if error.is_some() {
        return error;
    }
    let user_ticks = state_of(task).map_or(0, |state| state.user_ticks);
    let added = flight.add(task, user_ticks) || {
        flight.settle(task, state_of);
        flight.add(task, user_ticks)
    };
    (!added).then_some(account.quota.error)
}

/// Counts objects and calls in flight. If only both together reach the maximum, waits for a while until calls complete.
fn settled(flight: &mut InFlight, asking: i32, max_live: u64, live: &dyn Fn() -> Option<u64>) -> Option<u64> {
    let until = sys::now_micros() + SETTLE_MICROS;
    loop {
        // Settle before the count: a call that completes in between counts twice rather than never.
        let in_flight = flight.settle(asking, state_of);
        let live = live()?;
        if live >= max_live || live + in_flight < max_live || sys::now_micros() >= until {
            return Some(live + in_flight);
        }
        let _ = sys::wait([NOTHING; 2], Some(SETTLE_PAUSE_MICROS));
    }
}

fn state_of(task: i32) -> Option<TaskState> {
    let mut text = [0; 512];
    let stat = sys::read_file(Path::of_task(task as u32, "/stat").bytes(), &mut text);
    Some(TaskState { letter: texts::state(stat)?, user_ticks: texts::user_ticks(stat)? })
}

/// Counts the processes of guests, including ended ones that were not reaped.
fn processes() -> Option<u64> {
    let mut entries = [0; BUFFER];
    let mut count = 0;
    watch::each_process(&mut entries, |_| count += 1).then_some(count)
}

/// Counts listed locks, up to `max`. Returns `None` if the list is too long to read: locks of other kinds and, of open
/// files, those of the whole host are in it.
fn listed_locks(locks: &Fd, kind: Lock, max: u64) -> Option<u64> {
    sys::seek(locks, 0).ok()?;
    let until = sys::now_micros() + COUNT_MICROS;
    let mut count = 0;
    let mut in_time = true;
    each_line(locks, &mut |line| {
        count += u64::from(quota::lock(line) == Some(kind));
        in_time = sys::now_micros() < until;
        count < max && in_time
    })
    .ok()?;
    in_time.then_some(count)
}

/// Counts process locks through each descriptor, up to a little more than `max`.
///
/// They belong to the descriptor table that took them. The filter allows no process to share its table with another,
/// and no thread to have its own, so a process keeps a lock until it ends or closes the file. If a process hides its
/// descriptors, its first thread ended before the others, or there are too many descriptors, locks cannot be counted.
fn held_locks(max: u64) -> Option<u64> {
    let mut entries = [0; BUFFER];
    let until = sys::now_micros() + COUNT_MICROS;
    let mut count = 0;
    let mut whole = true;
    let listed = watch::each_process(&mut entries, |pid| {
        if count < max && whole {
            match locks_of(pid as u32, max, until) {
                Some(held) => count += held,
                None => whole = false,
            }
        }
    });
    (listed && whole).then_some(count)
}

/// A process as far as its locks can be counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Its first thread runs, and shows the descriptors of the process.
    Running,
    /// It has ended, with its descriptors closed.
    Ended,
    /// Its first thread is ending or has ended before others, or it cannot be read.
    Hidden,
}

fn holder(pid: u32) -> Holder {
    let mut text = [0; BUFFER];
    let status = match sys::open(Path::new("/proc/", pid, "/status").bytes(), 0) {
        Ok(file) => match sys::read_all(file.number(), &mut text) {
            Ok(length) => text.get(..length).unwrap_or_default(),
            Err(ESRCH) => return Holder::Ended,
            Err(_) => return Holder::Hidden,
        },
        Err(sys::ENOENT) => return Holder::Ended,
        Err(_) => return Holder::Hidden,
    };
    if texts::field(status, b"VmSize:").is_some() {
        return Holder::Running;
    }
    // A process closes its descriptors after its memory is gone, and becomes a zombie after that.
    let is_zombie = state_of(pid as i32).is_some_and(|state| matches!(state.letter, b'Z' | b'X'));
    let is_alone = texts::field(status, b"Threads:").is_none_or(|threads| threads < 2);
    if is_zombie && is_alone { Holder::Ended } else { Holder::Hidden }
}

fn locks_of(pid: u32, max: u64, until: u64) -> Option<u64> {
    // Most processes without memory end in a moment.
    while holder(pid) == Holder::Hidden {
        if sys::now_micros() >= until {
            return None;
        }
        let _ = sys::wait([NOTHING; 2], Some(SETTLE_PAUSE_MICROS));
    }
    let directory = match sys::open_directory(Path::new("/proc/", pid, "/fd").bytes()) {
        Ok(directory) => directory,
        Err(sys::ENOENT) => return Some(0),
        Err(_) => return None,
    };
    let mut entries = [0; BUFFER];
    let mut count = 0;
    let mut at_end = false;
    while count < max {
        let listed = match sys::entries(&directory, &mut entries) {
            Ok(listed) => listed,
            Err(sys::ENOENT | ESRCH) if holder(pid) == Holder::Ended => return Some(0),
            Err(_) => return None,
        };
        if listed.is_empty() {
            // The list also ends when the first thread does. Another thread that executes a program then takes its place
            // and shows the rest of the descriptors.
            match holder(pid) {
                Holder::Ended => return Some(0),
                Holder::Running if at_end => break,
                Holder::Running => at_end = true,
                Holder::Hidden => return None,
            }
            continue;
        }
        at_end = false;
        let mut whole = true;
        watch::each_entry(listed, |entry| {
            whole &= sys::now_micros() < until;
            if let Some(fd) = texts::number(entry.name).filter(|_| count < max && whole) {
                match locks_through(pid, fd as u32, max) {
                    Some(held) => count += held,
                    None => whole = false,
                }
            }
        });
        if !whole {
            return None;
        }
    }
    Some(count)
}

/// Counts the locks that a process holds through a descriptor. Returns 0 if that is closed, and its locks with it.
fn locks_through(pid: u32, fd: u32, max: u64) -> Option<u64> {
    let path = Path::of_descriptor(pid, fd);
    let file = match sys::open(path.bytes(), 0) {
        Ok(file) => file,
        Err(sys::ENOENT) => match holder(pid) {
            Holder::Ended => return Some(0),
            // Missing again while the first thread runs: it was not the thread's end that hid it.
            Holder::Running => match sys::open(path.bytes(), 0) {
                Ok(file) => file,
                Err(sys::ENOENT) => return Some(0),
                Err(_) => return None,
            },
            Holder::Hidden => return None,
        },
        Err(_) => return None,
    };
    let mut count = 0;
    match each_line(&file, &mut |line| {
        count += u64::from(quota::is_held_lock(line));
        count < max
    }) {
        Ok(()) => Some(count),
        Err(sys::ENOENT | ESRCH) if holder(pid) != Holder::Hidden => Some(count),
        Err(_) => None,
    }
}

/// Reads the number of netlink sockets in the network namespace. It includes those without an address and those in
/// flight between processes: `/proc/net/netlink` lists only those with an address, which they get on first use.
fn netlink_sockets() -> Option<u64> {
    let file = sys::open(b"/proc/net/protocols\0", 0).ok()?;
    let mut found = None;
    each_line(&file, &mut |line| {
        found = quota::netlink_sockets(line);
        found.is_none()
    })
    .ok()?;
    found
}

/// Counts the listening sockets of the network namespace.
fn listeners() -> Option<u64> {
    let count = |path: &[u8]| match count_lines(path, quota::is_listener) {
        // The kernel does not support this version of IP.
        Err(sys::ENOENT) => Some(0),
        other => other.ok(),
    };
    Some(count(b"/proc/net/tcp\0")? + count(b"/proc/net/tcp6\0")?)
}

/// Counts the lines after the heading, up to the first line that does not match.
fn count_lines(path: &[u8], counts: fn(&[u8]) -> bool) -> Res<u64> {
    let file = sys::open(path, 0)?;
    let mut lines = 0;
    each_line(&file, &mut |line| {
        let goes_on = lines == 0 || counts(line);
        lines += u64::from(goes_on);
        goes_on
    })?;
    Ok(lines.saturating_sub(1))
}

/// Calls `visit` with each line of a file until it returns false.
fn each_line(file: &Fd, visit: &mut dyn FnMut(&[u8]) -> bool) -> Res<()> {
    let mut buffer = [0; BUFFER];
    let mut retained = 0;
    loop {
        let rest = buffer.get_mut(retained..).filter(|rest| !rest.is_empty()).ok_or(sys::EBADMSG)?;
        let length = sys::read(file.number(), rest)?;
        if length == 0 {
            return Ok(());
        }
        let end = retained + length;
        let text = buffer.get(..end).unwrap_or_default();
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let lines = text.get(..whole).unwrap_or_default().split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        for line in lines {
            if !visit(line) {
                return Ok(());
            }
        }
        retained = end - whole;
        for at in 0..retained {
            let byte = buffer.get(whole + at).copied().unwrap_or_default();
            if let Some(slot) = buffer.get_mut(at) {
                *slot = byte;
            }
        }
    }
}

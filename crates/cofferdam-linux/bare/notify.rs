//! Answers the system calls that the filter notifies this process of: locks of files, netlink sockets, listening sockets,
//! and new processes where their number is limited.
//!
//! The kernel charges none of these to a memory limit, and has no limit of its own for their number. The answer depends on
//! the call's number and on arguments in registers, which nothing can change meanwhile, and on counts of the kernel's. A
//! call that is granted is made by the guest itself, so that one that waits for a lock keeps only its own task waiting.

use super::quota::{self, Account, InFlight, Lock, Quota, TaskState};
use super::sys::{self, Fd, Notification, Res};
use super::texts::{self, Path};
use super::watch;

const EAGAIN: i32 = 11;
const ENOLCK: i32 = 37;
const ENOBUFS: i32 = 105;
const ENOSYS: i32 = 38;

/// Locks of processes. Each call makes two at most, one of them by splitting another: so there are never more than 36,864,
/// and two for each task, of about 200 bytes. To list locks is slow, for the kernel stops all locking of the host
/// meanwhile, and rare for that reason.
const PROCESS_LOCKS: Quota = Quota { max_live: 4096, calls: 16_384, error: ENOLCK };
/// Locks of open files. The kernel lists those of the whole host: where others have as many, the first `calls` are all that
/// this sandbox may make. Locks of processes, which nearly every program uses, do not suffer from that.
const OPEN_FILE_LOCKS: Quota = Quota { max_live: 4096, calls: 4096, error: ENOLCK };
/// Netlink sockets, each with a buffer of 208 KiB for answers.
const NETLINK: Quota = Quota { max_live: 32, calls: 16, error: ENOBUFS };
/// Listening sockets, each with 17 connections that wait to be accepted and hold 64 KiB.
const LISTENERS: Quota = Quota { max_live: 24, calls: 8, error: ENOBUFS };
/// Connections that may wait for a listening socket.
pub const MAX_BACKLOG: u32 = 16;

const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;
/// Bytes of a list that are read at once. No line is as long.
const TEXT: usize = 4096;
/// Time for calls in flight to be made, where a count depends on them: a program that calls `fork` often runs between two
/// calls, and the kernel shows only by its next clock tick that it does.
const SETTLE_MICROS: u64 = 50_000;
const SETTLE_PAUSE_MICROS: u64 = 1000;
/// Time for one count of the locks that processes hold. Guests may have a million descriptors.
const COUNT_MICROS: u64 = 250_000;
/// The kernel ignores negative descriptors.
const NOTHING: (i32, sys::Ready) = (-1, sys::Ready::Read);

/// What keeps the queues of listening sockets short.
#[derive(Clone, Copy)]
pub enum Backlog {
    /// The kernel, by a setting of the network namespace.
    Bounded,
    /// This process, which listens in the guest's stead with this key for the filter.
    Shorten(u64),
    /// This process, which refuses longer ones.
    Refuse,
}

/// The listener of the filter, and what is left of each quota.
pub struct Quotas {
    listener: Fd,
    /// The list of locks, opened before it was covered. Without it, locks are counted process by process.
    locks: Option<Fd>,
    backlog: Backlog,
    process_locks: Account,
    open_file_locks: Account,
    netlink: (Account, InFlight),
    listeners: (Account, InFlight),
    max_processes: u64,
    processes: (Account, InFlight),
    processes_refused: u64,
}

impl Quotas {
    /// Begins, before any guest runs. Without `max_processes`, the filter has no notification for new processes.
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
            max_processes,
            // The first call is counted as well: the program that makes it is a process.
            processes: (Account::used_up(processes), InFlight::NONE),
            processes_refused: 0,
        }
    }

    /// Returns the descriptors that it needs.
    pub fn numbers(&self) -> [i32; 2] {
        [self.listener.number(), self.locks.as_ref().map_or(-1, Fd::number)]
    }

    /// Returns how many processes were refused, where their number is limited.
    pub fn processes_refused(&self) -> Option<u64> {
        (self.max_processes < u64::MAX).then_some(self.processes_refused)
    }

    /// Returns true while one more process may be started for an exec.
    pub fn allows_process(&mut self) -> bool {
        self.max_processes == u64::MAX || {
            let (_, flight) = &mut self.processes;
            settled(flight, 0, self.max_processes, &processes).is_some_and(|live| live < self.max_processes)
        }
    }

    /// Gives the locks of open files their quota back while no guest runs: none can exist then.
    pub fn renew_idle(&mut self) {
        if self.locks.is_none() && !sys::has_children() {
            self.open_file_locks = Account::new(OPEN_FILE_LOCKS);
        }
    }

    /// Answers one call: a guest that floods this process with calls does not keep it from its other work for longer.
    pub fn answer_one(&mut self) -> Res<()> {
        let listener = self.listener.number();
        let asked = match sys::notification(listener) {
            Ok(asked) => asked,
            // The task was killed, or a signal interrupted it: it asks again.
            Err(sys::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let answer = self.decide(&asked);
        match sys::answer(listener, &asked, answer) {
            Err(sys::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn decide(&mut self, asked: &Notification) -> sys::Reply {
        let locks = self.locks.as_ref();
        let error = match asked.number as usize {
            sys::FCNTL => {
                let (account, kind, quota) = match asked.arguments[1] as u32 {
                    F_OFD_SETLK | F_OFD_SETLKW => (&mut self.open_file_locks, Lock::OpenFile, OPEN_FILE_LOCKS),
                    _ => (&mut self.process_locks, Lock::Process, PROCESS_LOCKS),
                };
                account.decide(&sys::now_micros, &mut || match (locks, kind) {
                    (Some(locks), _) => listed_locks(locks, kind, quota.max_live),
                    (None, Lock::Process) => held_locks(quota.max_live),
                    // A file on its way between processes is in the hands of none.
                    (None, Lock::OpenFile) => None,
                })
            }
            sys::SOCKET => decide_large(&mut self.netlink, asked.task, NETLINK.max_live, &netlink_sockets),
            sys::LISTEN => {
                let error = decide_large(&mut self.listeners, asked.task, LISTENERS.max_live, &listeners);
                // The kernel takes negative numbers for the longest queue there is.
                match self.backlog {
                    Backlog::Bounded => error,
                    _ if error.is_some() || asked.arguments[1] as u32 <= MAX_BACKLOG => error,
                    Backlog::Shorten(key) => return listen(asked, key),
                    Backlog::Refuse => Some(ENOBUFS),
                }
            }
            // Only with such a limit does the filter have notifications for anything else, which are for new processes.
            _ if self.max_processes < u64::MAX => {
                let error = decide_large(&mut self.processes, asked.task, self.max_processes, &processes);
                self.processes_refused += u64::from(error.is_some());
                error
            }
            _ => Some(ENOSYS),
        };
        error.map_or(sys::Reply::Continue, sys::Reply::Fail)
    }
}

/// Listens in a guest's stead, with a short queue: the kernel has no setting here that would shorten it.
///
/// The socket is the caller's, or another of the sandbox's if the caller changes its descriptors meanwhile. Guests that are
/// not dumpable, or whose first thread has ended, cannot listen.
fn listen(asked: &Notification, key: u64) -> sys::Reply {
    let listened = || -> Res<()> {
        let mut text = [0; TEXT];
        let status = sys::read_file(Path::new("/proc/", asked.task as u32, "/status").bytes(), &mut text);
        let process = texts::field(status, b"Tgid:").ok_or(ENOBUFS)?;
        let handle = sys::open_process(process as i32)?;
        let socket = sys::take_descriptor(&handle, asked.arguments[0] as i32, key)?;
        sys::listen(&socket, MAX_BACKLOG as usize, key)
    };
    listened().map_or_else(sys::Reply::Fail, |()| sys::Reply::Succeed)
}

/// Decides about a call that makes a large object: those in flight count as made.
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

/// Counts objects and calls in flight. Where only the latter reach the maximum, waits a while for them to be made.
fn settled(flight: &mut InFlight, asking: i32, max_live: u64, live: &dyn Fn() -> Option<u64>) -> Option<u64> {
    let until = sys::now_micros() + SETTLE_MICROS;
    loop {
        // Before the count: a call that is made in between counts twice rather than never.
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

/// Counts the processes of guests, those that have ended and were not reaped included.
fn processes() -> Option<u64> {
    let mut entries = [0; TEXT];
    let mut count = 0;
    watch::each_process(&mut entries, |_| count += 1).then_some(count)
}

/// Counts listed locks, no more than `max`.
fn listed_locks(locks: &Fd, kind: Lock, max: u64) -> Option<u64> {
    sys::seek(locks, 0).ok()?;
    let mut count = 0;
    each_line(locks, &mut |line| {
        count += u64::from(quota::lock(line) == Some(kind));
        count < max
    })
    .ok()?;
    Some(count)
}

/// Counts the locks of processes with each descriptor of the file, no more than a little above `max`.
///
/// They belong to the descriptor table that took them. The filter lets no process share its table with another, and no thread
/// have one of its own, so that a lock is with one process until that ends or closes the file. A process that hides its
/// descriptors, or whose first thread ended before the others, makes the locks uncountable, as do too many descriptors.
fn held_locks(max: u64) -> Option<u64> {
    let mut entries = [0; TEXT];
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

fn locks_of(pid: u32, max: u64, until: u64) -> Option<u64> {
    let mut text = [0; TEXT];
    let status = sys::read_file(Path::new("/proc/", pid, "/status").bytes(), &mut text);
    if status.is_empty() {
        // It has ended, and its locks with it.
        return Some(0);
    }
    let has_memory = texts::field(status, b"VmSize:").is_some();
    if !has_memory {
        return texts::field(status, b"Threads:").is_none_or(|threads| threads < 2).then_some(0);
    }
    let mut entries = [0; TEXT];
    let mut count = 0;
    let mut whole = true;
    let listed = watch::each_name(Path::new("/proc/", pid, "/fd").bytes(), &mut entries, |name| {
        whole &= sys::now_micros() < until;
        if let Some(fd) = texts::number(name).filter(|_| count < max && whole) {
            match sys::open(Path::of_descriptor(pid, fd as u32).bytes(), 0) {
                Ok(file) => whole &= each_line(&file, &mut |line| {
                    count += u64::from(quota::is_held_lock(line));
                    count < max
                })
                .is_ok(),
                // Closed meanwhile, and its locks with it.
                Err(sys::ENOENT) => {}
                Err(_) => whole = false,
            }
        }
    });
    (listed && whole).then_some(count)
}

/// Reads how many netlink sockets guests have in the network namespace, those without an address and those in no process's
/// hands included: `/proc/net/netlink` would list only those with an address, which they get when they are used.
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
        // A kernel without this version of IP.
        Err(sys::ENOENT) => Some(0),
        other => other.ok(),
    };
    Some(count(b"/proc/net/tcp\0")? + count(b"/proc/net/tcp6\0")?)
}

/// Counts the lines after the first one, a head, up to the first that does not count.
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

/// Goes through the lines of a file until `visit` wants no more.
fn each_line(file: &Fd, visit: &mut dyn FnMut(&[u8]) -> bool) -> Res<()> {
    let mut buffer = [0; TEXT];
    let mut kept = 0;
    loop {
        let rest = buffer.get_mut(kept..).filter(|rest| !rest.is_empty()).ok_or(sys::EBADMSG)?;
        let length = sys::read(file.number(), rest)?;
        if length == 0 {
            return Ok(());
        }
        let end = kept + length;
        let text = buffer.get(..end).unwrap_or_default();
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let lines = text.get(..whole).unwrap_or_default().split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        for line in lines {
            if !visit(line) {
                return Ok(());
            }
        }
        kept = end - whole;
        for at in 0..kept {
            let byte = buffer.get(whole + at).copied().unwrap_or_default();
            if let Some(slot) = buffer.get_mut(at) {
                *slot = byte;
            }
        }
    }
}

//! Answers the system calls that the filter asks about: locks of files, netlink sockets, listening sockets.
//!
//! The kernel charges none of these to a memory limit, and has no limit of its own for their number. The answer depends on
//! the call's number and on arguments in registers, which nothing can change meanwhile, and on counts of the kernel's. A
//! call that is granted is made by the guest itself, so that one that waits for a lock keeps only its own task waiting.

use super::quota::{self, Account, InFlight, Lock, Quota};
use super::sys::{self, Fd, Notification, Res};
use super::texts::{self, Path};

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

const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;
/// Bytes of a list that are read at once. No line is as long.
const TEXT: usize = 4096;

/// Where the calls are asked about, and what is left of each quota.
pub struct Quotas {
    listener: Fd,
    /// The list of locks, opened before it was covered.
    locks: Fd,
    process_locks: Account,
    open_file_locks: Account,
    netlink: (Account, InFlight),
    listeners: (Account, InFlight),
}

impl Quotas {
    /// Begins, before any guest runs.
    pub fn new(listener: Fd, locks: Fd) -> Self {
        sys::wake_on_same_processor(listener.number());
        Self {
            listener,
            locks,
            process_locks: Account::new(PROCESS_LOCKS),
            open_file_locks: Account::new(OPEN_FILE_LOCKS),
            netlink: (Account::new(NETLINK), InFlight::NONE),
            listeners: (Account::new(LISTENERS), InFlight::NONE),
        }
    }

    /// The descriptors that it needs.
    pub fn numbers(&self) -> [i32; 2] {
        [self.listener.number(), self.locks.number()]
    }

    /// Answers one call: whoever floods this process with calls does not keep it from its other work for longer.
    pub fn answer_one(&mut self) -> Res<()> {
        let listener = self.listener.number();
        let asked = match sys::notification(listener) {
            Ok(asked) => asked,
            // The task was killed, or a signal interrupted it: it asks again.
            Err(sys::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let error = self.decide(&asked);
        match sys::answer(listener, &asked, error) {
            Err(sys::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn decide(&mut self, asked: &Notification) -> Option<i32> {
        let locks = &self.locks;
        match asked.number as usize {
            sys::FCNTL => {
                let (account, kind, quota) = match asked.arguments[1] as u32 {
                    F_OFD_SETLK | F_OFD_SETLKW => (&mut self.open_file_locks, Lock::OpenFile, OPEN_FILE_LOCKS),
                    _ => (&mut self.process_locks, Lock::Process, PROCESS_LOCKS),
                };
                account.decide(&sys::now_micros, &mut || live_locks(locks, kind, quota.max_live))
            }
            sys::SOCKET => decide_large(&mut self.netlink, asked.task, &netlink_sockets),
            sys::LISTEN => decide_large(&mut self.listeners, asked.task, &listeners),
            // The filter asks about nothing else.
            _ => Some(ENOSYS),
        }
    }
}

/// Decides about a call that makes a large object: those in flight count as made.
fn decide_large(
    (account, flight): &mut (Account, InFlight),
    task: i32,
    live: &dyn Fn() -> Option<u64>,
) -> Option<i32> {
    let error = account.decide(&sys::now_micros, &mut || {
        // Before the count: a call that is made in between counts twice rather than never.
        let in_flight = flight.settle(state_of);
        live().map(|live| live + in_flight)
    });
    if error.is_none() {
        flight.add(task);
    }
    error
}

fn state_of(task: i32) -> Option<u8> {
    let mut text = [0; 128];
    texts::state(sys::read_file(Path::new("/proc/", task as u32, "/stat").bytes(), &mut text))
}

/// Counts locks, no more than `most`.
fn live_locks(locks: &Fd, kind: Lock, most: u64) -> Option<u64> {
    sys::seek(locks, 0).ok()?;
    let mut count = 0;
    each_line(locks, &mut |line| {
        count += u64::from(quota::lock(line) == Some(kind));
        count < most
    })
    .ok()?;
    Some(count)
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

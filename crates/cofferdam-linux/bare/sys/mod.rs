//! Wrapped system calls, so that the rest of the program needs no unsafe code. Failures are error numbers.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod files;
mod inet;
mod isolation;
mod memory;
mod message;
mod notify;
mod process;
mod vm_setup;
mod vsock;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::O_DIRECTORY;
#[cfg(target_arch = "aarch64")]
use aarch64::{call, clone, number};
#[cfg(target_arch = "x86_64")]
pub use x86_64::O_DIRECTORY;
#[cfg(target_arch = "x86_64")]
use x86_64::{call, clone, number};

pub use files::*;
pub use inet::*;
pub use isolation::*;
pub use memory::{Mapping, Once};
pub use message::{Fds, next_length, receive, send};
pub use notify::{
    Notification, Reply, answer, listen, notification, open_process, take_descriptor, wake_on_same_processor,
};
pub use number::{FCNTL, LISTEN, SOCKET};
pub use process::*;
pub use vm_setup::*;
pub use vsock::{vsock_accept, vsock_listen};

/// A result, or an error number.
pub type Res<T> = Result<T, i32>;

pub const ENOENT: i32 = 2;
const EINTR: i32 = 4;
pub const EAGAIN: i32 = 11;
pub const EACCES: i32 = 13;
pub const ENOTDIR: i32 = 20;
pub const EINVAL: i32 = 22;
pub const EBADF: i32 = 9;
pub const EBADMSG: i32 = 74;
pub const EPIPE: i32 = 32;
pub const ECONNRESET: i32 = 104;

/// The descriptor that means the working directory.
pub const AT_FDCWD: i32 = -100;
const O_CLOEXEC: usize = 0o2_000_000;
const O_NOCTTY: usize = 0o400;
const O_RDWR: usize = 2;

/// System calls return errors as the last page of numbers.
fn checked(result: isize) -> Res<usize> {
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
}

fn retried(mut attempt: impl FnMut() -> Res<usize>) -> Res<usize> {
    loop {
        match attempt() {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// A descriptor that is closed when it is dropped.
pub struct Fd(i32);

impl Fd {
    /// Takes ownership of a descriptor.
    pub fn own(fd: i32) -> Self {
        Self(fd)
    }

    /// Returns its number.
    pub fn number(&self) -> i32 {
        self.0
    }

    fn raw(&self) -> usize {
        self.0 as usize
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: plain numbers; the descriptor is not used afterwards.
        unsafe { call(number::CLOSE, [self.raw(), 0, 0, 0, 0, 0]) };
    }
}

pub fn open(path: &[u8], flags: usize) -> Res<Fd> {
    if path.last() != Some(&0) {
        return Err(EINVAL);
    }
    // SAFETY: the path ends with a NUL.
    let fd = unsafe { checked(call(number::OPENAT, [AT_FDCWD as usize, path.as_ptr() as usize, flags | O_CLOEXEC, 0, 0, 0])) }?;
    Ok(Fd(fd as i32))
}

/// Opens a directory; the path ends with a NUL.
pub fn open_directory(path: &[u8]) -> Res<Fd> {
    open(path, O_DIRECTORY)
}

/// Opens a terminal; the path ends with a NUL.
pub fn open_terminal(path: &[u8]) -> Res<Fd> {
    open(path, O_RDWR | O_NOCTTY)
}

/// Reads once.
pub fn read(fd: i32, into: &mut [u8]) -> Res<usize> {
    let (at, length) = (into.as_mut_ptr() as usize, into.len());
    // SAFETY: the buffer has the length that is passed.
    retried(|| unsafe { checked(call(number::READ, [fd as usize, at, length, 0, 0, 0])) })
}

/// Reads to the end, or until the buffer is full.
pub fn read_all(fd: i32, into: &mut [u8]) -> Res<usize> {
    let mut length = 0;
    while let Some(rest) = into.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match read(fd, rest)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// Returns the start of a file, as much as fits, or nothing if it cannot be read. The path ends with a NUL.
pub fn read_file<'a>(path: &[u8], into: &'a mut [u8]) -> &'a [u8] {
    let length = open(path, 0).and_then(|file| read_all(file.number(), into)).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

/// Returns entries of a directory in the kernel's format, or nothing at its end.
pub fn entries<'a>(directory: &Fd, into: &'a mut [u8]) -> Res<&'a [u8]> {
    let arguments = [directory.raw(), into.as_mut_ptr() as usize, into.len(), 0, 0, 0];
    // SAFETY: the buffer has the length that is passed.
    let length = unsafe { checked(call(number::GETDENTS64, arguments)) }?;
    Ok(into.get(..length).unwrap_or_default())
}

/// Makes `target` a copy of `fd`.
pub fn duplicate_to(fd: i32, target: i32) -> Res<()> {
    // SAFETY: plain numbers; only descriptors whose owners agreed are replaced.
    unsafe { checked(call(number::DUP3, [fd as usize, target as usize, 0, 0, 0, 0])) }.map(drop)
}

/// Duplicates a descriptor. Executed programs do not inherit the copy.
pub fn duplicate(fd: &Fd) -> Res<Fd> {
    duplicate_number(fd.number())
}

/// Duplicates a descriptor without an owner.
pub fn duplicate_number(fd: i32) -> Res<Fd> {
    duplicate_from(fd, 3)
}

/// Duplicates a descriptor to a number that is at least `min`.
pub fn duplicate_above(fd: &Fd, min: usize) -> Res<Fd> {
    duplicate_from(fd.number(), min)
}

fn duplicate_from(fd: i32, min: usize) -> Res<Fd> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    // SAFETY: plain numbers; the descriptor is new.
    unsafe { checked(call(number::FCNTL, [fd as usize, F_DUPFD_CLOEXEC, min, 0, 0, 0])) }.map(|fd| Fd(fd as i32))
}

/// Closes a range of descriptors that are not used any more.
pub fn close_range(first: i32, last: i32) {
    if first <= last {
        // SAFETY: plain numbers, the caller's promise.
        unsafe { call(number::CLOSE_RANGE, [first as usize, last as usize, 0, 0, 0, 0]) };
    }
}

/// Returns the used bytes of the file system at a NUL-terminated path.
pub fn used_bytes(path: &[u8]) -> Res<u64> {
    let found = statfs(path)?;
    let size = if found.fragment_size > 0 { found.fragment_size } else { found.block_size };
    Ok(found.blocks.saturating_sub(found.free).saturating_mul(size as u64))
}

/// Returns the number of files of the file system at a NUL-terminated path.
pub fn used_files(path: &[u8]) -> Res<u64> {
    let found = statfs(path)?;
    Ok(found.files.saturating_sub(found.free_files))
}

#[repr(C)]
#[derive(Default)]
struct Statfs {
    kind: i64,
    block_size: i64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    free_files: u64,
    more: [u64; 2],
    fragment_size: i64,
    rest: [u64; 5],
}

fn statfs(path: &[u8]) -> Res<Statfs> {
    if path.last() != Some(&0) {
        return Err(EINVAL);
    }
    let mut found = Statfs::default();
    // SAFETY: the path ends with a NUL, the structure is the kernel's.
    unsafe { checked(call(number::STATFS, [path.as_ptr() as usize, &raw mut found as usize, 0, 0, 0, 0])) }?;
    Ok(found)
}

const TIOCSCTTY: usize = 0x540e;
const TIOCSWINSZ: usize = 0x5414;
const TIOCGPTN: usize = 0x8004_5430;
const TIOCSPTLCK: usize = 0x4004_5431;

fn ioctl(fd: i32, request: usize, argument: usize) -> Res<usize> {
    // SAFETY: every caller in this module passes the argument that the request requires.
    unsafe { checked(call(number::IOCTL, [fd as usize, request, argument, 0, 0, 0])) }
}

/// Unlocks a new terminal by its controlling end. Returns its number.
pub fn unlock_terminal(master: &Fd) -> Res<u32> {
    let (unlocked, mut terminal) = (0i32, 0u32);
    ioctl(master.0, TIOCSPTLCK, &raw const unlocked as usize)?;
    ioctl(master.0, TIOCGPTN, &raw mut terminal as usize)?;
    Ok(terminal)
}

/// Sets a terminal's size.
pub fn set_size(terminal: &Fd, (rows, columns): (u16, u16)) -> Res<()> {
    let size = [rows, columns, 0, 0];
    ioctl(terminal.0, TIOCSWINSZ, size.as_ptr() as usize).map(drop)
}

/// Makes descriptor 0 the controlling terminal of the calling session leader.
pub fn control_terminal() -> Res<()> {
    ioctl(0, TIOCSCTTY, 0).map(drop)
}

/// A condition to wait for on a descriptor.
#[derive(Clone, Copy)]
pub enum Ready {
    Read = 1,
    Write = 4,
}

/// A descriptor and the condition to wait for; the kernel's `pollfd`. Negative descriptors are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PollFd {
    fd: i32,
    events: i16,
    found: i16,
}

impl PollFd {
    /// An entry that is ignored.
    pub const NONE: Self = Self { fd: -1, events: 0, found: 0 };
    /// A placeholder that must be replaced before use. It is all zero, so that a list takes no space in a program's
    /// file.
    pub const UNSET: Self = Self { fd: 0, events: 0, found: 0 };

    /// Creates an entry for a descriptor and a condition.
    pub fn new(fd: i32, ready: Ready) -> Self {
        Self { fd, events: ready as i16, found: 0 }
    }

    /// Returns true if the descriptor is ready or broken.
    pub fn is_ready(&self) -> bool {
        self.found != 0
    }
}

/// Waits until one of the descriptors is ready, at most for the given microseconds.
pub fn poll(fds: &mut [PollFd], micros: Option<u64>) -> Res<()> {
    let time = micros.map(|micros| [micros / 1_000_000, micros % 1_000_000 * 1000]);
    let limit = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    let arguments = [fds.as_mut_ptr() as usize, fds.len(), limit, 0, 8, 0];
    // SAFETY: list and time live through the call, the list has the length that is passed.
    retried(|| unsafe { checked(call(number::PPOLL, arguments)) }).map(drop)
}

/// Waits until one of two descriptors is ready, at most for the given microseconds. Returns which ones are ready.
pub fn wait(fds: [(i32, Ready); 2], micros: Option<u64>) -> Res<[bool; 2]> {
    let mut polled = fds.map(|(fd, ready)| PollFd::new(fd, ready));
    poll(&mut polled, micros)?;
    Ok(polled.map(|fd| fd.is_ready()))
}

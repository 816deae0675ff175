//! The listener of a filter of system calls: which call waits, and its answer.

use super::{Fd, Res, call, checked, ioctl, number, retried};

/// The structures that these requests take: `struct seccomp_notif` and `struct seccomp_notif_resp`.
const RECEIVE: usize = 0xc050_2100;
const SEND: usize = 0xc018_2101;
const SET_FLAGS: usize = 0x4008_2104;
const SYNC_WAKE_UP: usize = 1;
const CONTINUE: u32 = 1;

/// A call that waits for its answer.
#[repr(C)]
#[derive(Default)]
pub struct Notification {
    id: u64,
    /// The task that makes it, in this process's pid namespace.
    pub task: i32,
    flags: u32,
    /// The call's number.
    pub number: i32,
    arch: u32,
    instruction: u64,
    pub arguments: [u64; 6],
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Notification>() == 80 && size_of::<Response>() == 24);

/// Wakes the tasks that wait on the processor of this process, where the kernel can: it waits itself right after an answer.
pub fn wake_on_same_processor(listener: i32) {
    let _ = ioctl(listener, SET_FLAGS, SYNC_WAKE_UP);
}

/// Returns the next call. To be used when the listener is readable; ENOENT when the task was killed since.
pub fn notification(listener: i32) -> Res<Notification> {
    // The kernel wants zeros.
    let mut found = Notification::default();
    retried(|| ioctl(listener, RECEIVE, &raw mut found as usize))?;
    Ok(found)
}

/// What becomes of a call.
#[derive(Clone, Copy)]
pub enum Reply {
    /// The kernel makes it.
    Continue,
    /// It is not made, and returns 0.
    Succeed,
    /// It is not made, and fails with this error.
    Fail(i32),
}

/// Answers a call.
pub fn answer(listener: i32, to: &Notification, reply: Reply) -> Res<()> {
    let (error, flags) = match reply {
        Reply::Continue => (0, CONTINUE),
        Reply::Succeed => (0, 0),
        Reply::Fail(error) => (-error, 0),
    };
    let response = Response { id: to.id, value: 0, error, flags };
    retried(|| ioctl(listener, SEND, &raw const response as usize)).map(drop)
}

/// Opens a handle on a process.
pub fn open_process(pid: i32) -> Res<Fd> {
    // SAFETY: plain numbers; the descriptor is new.
    unsafe { checked(call(number::PIDFD_OPEN, [pid as usize, 0, 0, 0, 0, 0])) }.map(|fd| Fd::own(fd as i32))
}

/// Returns a copy of a process's descriptor. The filter lets this call through with the key, which the kernel does not read.
pub fn take_descriptor(process: &Fd, descriptor: i32, key: u64) -> Res<Fd> {
    let arguments = [process.number() as usize, descriptor as usize, 0, 0, 0, key as usize];
    // SAFETY: plain numbers; the descriptor is new.
    unsafe { checked(call(number::PIDFD_GETFD, arguments)) }.map(|fd| Fd::own(fd as i32))
}

/// Listens on a socket. The filter lets this call through with the key, which the kernel does not read.
pub fn listen(socket: &Fd, backlog: usize, key: u64) -> Res<()> {
    // SAFETY: plain numbers.
    unsafe { checked(call(number::LISTEN, [socket.number() as usize, backlog, 0, 0, 0, key as usize])) }.map(drop)
}

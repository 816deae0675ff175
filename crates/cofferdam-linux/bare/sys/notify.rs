//! The listener of a filter of system calls: which call waits, and its answer.

use super::{Res, ioctl, retried};

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

/// Lets the call continue, or fail with an error.
pub fn answer(listener: i32, to: &Notification, error: Option<i32>) -> Res<()> {
    let (error, flags) = error.map_or((0, CONTINUE), |error| (-error, 0));
    let response = Response { id: to.id, value: 0, error, flags };
    retried(|| ioctl(listener, SEND, &raw const response as usize)).map(drop)
}

//! Messages with descriptors over sockets.

use super::{EBADF, EBADMSG, Fd, Res, call, checked, number, retried};

/// The maximum of descriptors in one message.
pub const MAX_FDS: usize = 8;
const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const MSG_PEEK: usize = 0x2;
const MSG_CTRUNC: u32 = 0x8;
const MSG_TRUNC: usize = 0x20;
const MSG_DONTWAIT: usize = 0x40;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;

#[repr(C)]
struct Header {
    name: usize,
    name_length: usize,
    vectors: usize,
    vector_count: usize,
    control: usize,
    control_length: usize,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct Control {
    length: usize,
    level: u32,
    kind: u32,
    fds: [i32; MAX_FDS],
}

/// The number of bytes of a control message before its descriptors.
const CONTROL_HEAD: usize = 16;

/// Descriptors that came with a message. They are closed unless they are taken.
#[derive(Default)]
pub struct Fds {
    list: [Option<Fd>; MAX_FDS],
}

impl Fds {
    /// Takes the first one.
    pub fn take_first(&mut self) -> Res<Fd> {
        self.list.iter_mut().find_map(Option::take).ok_or(EBADF)
    }

    /// Returns the numbers of exactly three descriptors, or an error if there are more or fewer.
    pub fn three(&self) -> Res<[i32; 3]> {
        let mut numbers = self.list.iter().flatten().map(Fd::number);
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(a), Some(b), Some(c), None) => Ok([a, b, c]),
            _ => Err(EBADF),
        }
    }
}

/// Returns the length of the next message without receiving it: 0 if the other end is closed, EAGAIN if there is none.
pub fn next_length(socket: i32) -> Res<usize> {
    let mut byte = 0u8;
    let flags = MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT;
    let arguments = [socket as usize, &raw mut byte as usize, 1, flags, 0, 0];
    // SAFETY: a buffer of one byte.
    retried(|| unsafe { checked(call(number::RECVFROM, arguments)) })
}

/// Receives one message. Length 0 means that the other end is closed. A message that does not fit is an error.
pub fn receive(socket: i32, into: &mut [u8]) -> Res<(usize, Fds)> {
    let vector = [into.as_mut_ptr() as usize, into.len()];
    let mut control = Control::default();
    let mut header = Header {
        name: 0,
        name_length: 0,
        vectors: vector.as_ptr() as usize,
        vector_count: 1,
        control: &raw mut control as usize,
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let flags = MSG_CMSG_CLOEXEC | MSG_DONTWAIT;
    let arguments = [socket as usize, &raw mut header as usize, flags, 0, 0, 0];
    // SAFETY: the structures are the kernel's and live through the call.
    let length = retried(|| unsafe { checked(call(number::RECVMSG, arguments)) })?;
    let mut fds = Fds::default();
    if header.control_length >= CONTROL_HEAD && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS) {
        let count = control.length.saturating_sub(CONTROL_HEAD) / size_of::<i32>();
        for (slot, &fd) in fds.list.iter_mut().zip(control.fds.iter().take(count)) {
            *slot = Some(Fd::own(fd));
        }
    }
    if header.flags & (MSG_CTRUNC | MSG_TRUNC as u32) != 0 {
        return Err(EBADMSG);
    }
    Ok((length, fds))
}

/// Sends the parts as one message. Returns EAGAIN rather than wait.
pub fn send(socket: i32, parts: [&[u8]; 3], fds: &[i32]) -> Res<()> {
    let vectors = parts.map(|part| [part.as_ptr() as usize, part.len()]);
    let mut control = Control { level: SOL_SOCKET, kind: SCM_RIGHTS, ..Control::default() };
    control.fds.get_mut(..fds.len()).ok_or(EBADMSG)?.copy_from_slice(fds);
    control.length = CONTROL_HEAD + size_of_val(fds);
    let header = Header {
        name: 0,
        name_length: 0,
        vectors: vectors.as_ptr() as usize,
        vector_count: vectors.len(),
        control: if fds.is_empty() { 0 } else { &raw const control as usize },
        control_length: if fds.is_empty() { 0 } else { control.length.next_multiple_of(8) },
        flags: 0,
    };
    let arguments = [socket as usize, &raw const header as usize, MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0, 0];
    // SAFETY: the structures are the kernel's and live through the call.
    let sent = retried(|| unsafe { checked(call(number::SENDMSG, arguments)) })?;
    if sent == parts.iter().map(|part| part.len()).sum::<usize>() { Ok(()) } else { Err(EBADMSG) }
}

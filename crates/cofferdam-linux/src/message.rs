//! Messages with descriptors over `SOCK_SEQPACKET` sockets, with maximum size and number of descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::process::{self, Resource};

/// The maximum of descriptors in one message.
pub const MAX_FDS: usize = 8;
/// The maximum size of an inline message. Longer bodies are sent as a sealed file in memory.
pub const MAX_INLINE: usize = 64 * 1024;

/// Creates a pair of non-blocking sockets that are closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends one message. Fails with `WouldBlock` rather than wait.
///
/// The kernel counts the descriptors in flight of all processes of a user, and refuses more than the sender's limit of
/// open descriptors. Guests of the same user can raise that count up to their own limits, and for a moment beyond. In
/// this case the sender's soft limit is raised to its hard limit permanently.
pub fn send(socket: BorrowedFd<'_>, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut attempt =
        || rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &[io::IoSlice::new(body)], &mut control, flags));
    let sent = match attempt() {
        Err(rustix::io::Errno::TOOMANYREFS) => {
            process::set_soft_limit(Resource::OPEN_FILES, u64::MAX)?;
            attempt()?
        }
        other => other?,
    };
    if sent == body.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Returns true if the descriptors in flight of all processes of this user were too many for [`send`]. They are received
/// soon, if their receivers work.
pub fn is_crowded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error())
}

/// Returns the length of the next message without receiving it. Fails with `WouldBlock` rather than wait.
pub fn next_length(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    let (_, length) = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut [0u8; 1], flags))?;
    Ok(length)
}

/// Receives one message into `buffer`. Returns its length and descriptors. Length 0 means that the other end is closed.
/// A message that does not fit is an error. Fails with `WouldBlock` rather than wait.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [io::IoSliceMut::new(buffer)], &mut control, flags)
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long or with too many descriptors"));
    }
    Ok((received.bytes, fds))
}

/// Waits until the socket can be read or its other end is closed.
pub fn wait_readable(socket: impl AsFd, timeout: Option<std::time::Duration>) -> io::Result<bool> {
    wait(socket, rustix::event::PollFlags::IN, timeout)
}

/// Waits until the socket can be written or its other end is closed.
pub fn wait_writable(socket: impl AsFd, timeout: Option<std::time::Duration>) -> io::Result<bool> {
    wait(socket, rustix::event::PollFlags::OUT, timeout)
}

fn wait(socket: impl AsFd, flags: rustix::event::PollFlags, timeout: Option<std::time::Duration>) -> io::Result<bool> {
    let mut fds = [rustix::event::PollFd::new(&socket, flags)];
    let timeout = timeout.map(|limit| rustix::event::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
    Ok(ready > 0)
}

/// Stores a body that is too long for a message in a sealed file in memory.
pub fn seal(body: &[u8]) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write;
    let fd = memfd_create("message", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(body)?;
    let fd = OwnedFd::from(file);
    fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Reads a body that [`seal`] stored, of at most `limit` bytes.
pub fn unseal(fd: OwnedFd, limit: usize) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(fd);
    let length = file.metadata()?.len();
    if length > limit as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut body = vec![0; length as usize];
    file.read_exact_at(&mut body, 0)?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_travel_and_long_messages_are_refused() {
        let (a, b) = pair().unwrap();
        let mut buffer = [0; 16];
        assert_eq!(receive(a.as_fd(), &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(a.as_fd(), b"hello", &[a.as_fd(), b.as_fd()]).unwrap();
        let (length, fds) = receive(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..length], fds.len()), (&b"hello"[..], 2));
        drop(fds);
        send(a.as_fd(), &[1; 17], &[]).unwrap();
        assert_eq!(receive(b.as_fd(), &mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut buffer).unwrap().0, 0);
    }

    #[test]
    fn sealed_bodies_round_trip_and_are_bounded() {
        let body = vec![7; 100_000];
        assert_eq!(unseal(seal(&body).unwrap(), 100_000).unwrap(), body);
        assert!(unseal(seal(&body).unwrap(), 99_999).is_err());
    }
}

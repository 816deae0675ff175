//! Messages between two processes of a server, with descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_linux::message;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The version of the messages. Both processes must have the same.
pub const PROTOCOL: u32 = 1;
/// The most bytes of a message.
const MAX_MESSAGE: usize = 16 << 10;
/// The time to send a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// A listening socket, whose descriptor is attached. The receiver removes its file if `removes`.
    Listener {
        /// True if the receiver removes the file of the Unix socket at its end.
        removes: bool,
    },
    /// The end of the offer.
    Offer {
        /// The version of the messages.
        protocol: u32,
        /// The process that offers.
        instance: String,
    },
    /// The successor could serve now.
    Ready,
    /// The predecessor accepts nothing any more.
    Go,
    /// A connection with a forwarded request, whose descriptor is attached.
    Connection,
}

/// One end of a channel. Its socket is of the kind `SOCK_SEQPACKET`, and is only waited for as a stream.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    /// Uses a non-blocking socket.
    ///
    /// # Errors
    /// - `Io` for another kind of descriptor.
    pub fn new(socket: OwnedFd) -> Result<Self> {
        Ok(Self(UnixStream::from_std(net::UnixStream::from(socket)).map_err(failed)?))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// - `Unavailable` if the other process has ended, or does not read.
    pub async fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.try_send(message, fds).await.map_err(failed)
    }

    /// Sends a message as [`Self::send`] does, and returns the error of the system.
    pub async fn try_send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let sent = self.0.async_io(Interest::WRITABLE, || message::send(self.0.as_fd(), &body, fds));
        tokio::time::timeout(SEND_TIMEOUT, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Receives a message. Returns `None` if the other process has ended or finished the messages.
    ///
    /// # Errors
    /// - `Unavailable` for a malformed message.
    pub async fn receive(&self) -> Result<Option<(Message, Option<OwnedFd>)>> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let received = self.0.async_io(Interest::READABLE, || message::receive(self.0.as_fd(), &mut buffer)).await;
        let (length, fds) = match received {
            Ok(received) => received,
            // It ended with messages unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if length == 0 {
            return Ok(None);
        }
        let message = serde_json::from_slice(&buffer[..length]).map_err(|error| failed(error.into()))?;
        Ok(Some((message, fds.into_iter().next())))
    }

    /// Finishes the messages of this process. Idempotent.
    pub fn finish(&self) {
        // The other process may have ended.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }

    /// Makes further messages of the other process fail. Those that were sent before can still be received. Idempotent.
    pub fn refuse(&self) {
        // The other process may have ended.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Read);
    }
}

pub(super) fn failed(error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "hand over", "the processes of the server cannot exchange messages")
        .with_source(error)
}

/// Creates the error of a process that ended too early.
pub fn ended(which: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "hand over", format!("the {which} process ended before the handover"))
}

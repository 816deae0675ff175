//! The process at the other end of a Unix socket, as the kernel reports it.
//!
//! The same user is not enough. An ordinary user's guest is a process of that user on the host, but in its own user
//! namespace. `/proc` is read by process id. A pidfd is held meanwhile, and a process that ended during the read is
//! refused, so the id cannot belong to another process.

use std::fs::read_link;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::sockopt::socket_peercred;

use crate::process;

/// A reason not to trust the process at the other end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// It belongs to another user.
    #[error("belongs to another user")]
    OtherUser(u32),
    /// It has ended.
    #[error("has ended")]
    Ended,
    /// It cannot be inspected.
    #[error("cannot be inspected")]
    Hidden,
    /// It is in another user namespace.
    #[error("is in another user namespace, like a guest")]
    OtherNamespace,
    /// The socket has no credentials.
    #[error("cannot be identified: {0}")]
    Unknown(io::Error),
}

/// A process of this user and this user namespace.
#[derive(Debug)]
pub struct Peer {
    pid: u32,
    process: OwnedFd,
}

impl Peer {
    /// Returns the process at the other end of a socket, if it has this process's user and user namespace.
    ///
    /// # Errors
    /// See [`Distrust`].
    pub fn of(socket: impl AsFd) -> Result<Self, Distrust> {
        let other = socket_peercred(&socket).map_err(|error| Distrust::Unknown(error.into()))?;
        if other.uid != rustix::process::geteuid() {
            return Err(Distrust::OtherUser(other.uid.as_raw()));
        }
        let pid = u32::try_from(other.pid.as_raw_nonzero().get()).unwrap_or_default();
        let process = process::peer(socket.as_fd(), other.pid).map_err(|_| Distrust::Ended)?;
        let peer = Self { pid, process };
        // A hidden process is not trusted.
        let theirs = peer.namespace("user").ok_or(Distrust::Hidden)?;
        if read_link("/proc/self/ns/user").ok() != Some(theirs) {
            return Err(Distrust::OtherNamespace);
        }
        peer.still()?;
        Ok(peer)
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the process.
    #[must_use]
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// Checks, without waiting, that the process has not ended since `/proc` was read. So what was read belongs to it.
    ///
    /// # Errors
    /// [`Distrust::Ended`].
    pub fn still(&self) -> Result<(), Distrust> {
        if process::has_ended(self.process()) { Err(Distrust::Ended) } else { Ok(()) }
    }

    /// Returns one of its namespaces, such as `mnt`, or `None` if it cannot be inspected.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<PathBuf> {
        read_link(format!("/proc/{}/ns/{name}", self.pid)).ok()
    }
}

//! Descriptors that the runtime watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor, which must be non-blocking.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open, with the same number, for as long as the `AsyncFd` owns it; nothing takes it out
    // or replaces it, since no part of the crate asks an `AsyncFd` for mutable access.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

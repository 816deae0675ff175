//! Registration of descriptors with the runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime. It must be non-blocking.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open, with the same number, for as long as the `AsyncFd` owns it. It is neither taken
    // out nor replaced, because no part of the crate requests mutable access to an `AsyncFd`.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

//! Locks of files. The kernel releases them when their descriptors are closed, however the process ends.

use std::fs::File;
use std::io;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// A lock of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Exclusive,
}

/// Takes a lock, or changes the kind of the lock. Returns false if another process has one.
pub(crate) fn try_lock(file: &File, kind: Kind) -> io::Result<bool> {
    let operation = match kind {
        Kind::Shared => FlockOperation::NonBlockingLockShared,
        Kind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits for an exclusive lock.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    loop {
        match rustix::fs::flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Releases a lock, also for copies of the descriptor in processes that are being started.
pub(crate) fn unlock(file: &File) {
    // It fails only for descriptors that cannot be locked.
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

//! Lock of a workspace. It belongs to an open file, so the kernel releases it when a process is killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::tree;

/// Maximum time to wait for the lock of a workspace.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Processes that can have the lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// One.
    Exclusive,
    /// Any number, and none that has it exclusively.
    Shared,
}

/// A lock of a workspace.
#[derive(Debug)]
pub(super) struct Lock {
    /// `None` if the file system has no locks.
    file: Option<OwnedFd>,
    sharing: Sharing,
}

impl Lock {
    /// Waits for the lock of a directory. Returns `None` if other processes have it for the whole `timeout`.
    pub fn wait(directory: BorrowedFd<'_>, sharing: Sharing, timeout: Duration) -> io::Result<Option<Self>> {
        let operation = match sharing {
            Sharing::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Sharing::Shared => FlockOperation::NonBlockingLockShared,
        };
        // A lock of the descriptor of the caller would not exclude its other threads.
        let file = tree::open_directory(directory, Path::new(""))?;
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Some(Self { file: Some(file), sharing })),
                Err(Errno::WOULDBLOCK) if start.elapsed() >= timeout => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(POLL_INTERVAL),
                Err(Errno::INTR) => {}
                // Network file systems may have no locks of directories.
                Err(_) => return Ok(Some(Self { file: None, sharing })),
            }
        }
    }

    /// Returns true if no other process has the lock.
    pub fn is_exclusive(&self) -> bool {
        self.file.is_some() && self.sharing == Sharing::Exclusive
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // A child process that another thread just started may still have the descriptor.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Locks a temporary file or directory for as long as it is open.
pub(super) fn try_lock(file: impl AsFd) -> rustix::io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_and_the_wait_is_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(temp.path()).unwrap();
        let wait = |sharing, timeout| Lock::wait(directory.as_fd(), sharing, timeout).unwrap();
        let short = Duration::from_millis(50);
        let shared = wait(Sharing::Shared, short).unwrap();
        assert!(!shared.is_exclusive() && wait(Sharing::Shared, short).is_some());
        assert!(wait(Sharing::Exclusive, short).is_none());
        drop(shared);
        let exclusive = wait(Sharing::Exclusive, short).unwrap();
        assert!(exclusive.is_exclusive() && wait(Sharing::Shared, short).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(Sharing::Exclusive, Duration::from_secs(30)));
            std::thread::sleep(short);
            drop(exclusive);
            assert!(waiting.join().unwrap().is_some());
        });
    }
}

//! Synchronization of lines with the disk, many with one call.
//!
//! One thread at a time waits for the disk, on behalf of all. A failure is final, because the kernel reports a lost
//! page only once.

use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::failed;
use crate::{Error, Result};

/// A written line.
#[derive(Clone)]
pub(crate) struct Written {
    file: Arc<File>,
    number: u64,
}

/// The lines of one writer.
#[derive(Default)]
pub(crate) struct Group {
    latest: Mutex<Option<Written>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last line that is on the disk.
    done: u64,
    failed: bool,
}

impl Group {
    /// Records a written line. Files of earlier lines are already on the disk.
    pub fn wrote(&self, file: &Arc<File>) {
        let mut latest = self.latest.lock();
        let number = latest.as_ref().map_or(0, |latest| latest.number) + 1;
        *latest = Some(Written { file: file.clone(), number });
    }

    /// The last written line.
    pub fn latest(&self) -> Option<Written> {
        self.latest.lock().clone()
    }

    /// Waits until this line is on the disk.
    pub fn synchronise(&self, written: &Written) -> Result<()> {
        let mut state = self.state.lock();
        check_usable(&state)?;
        if state.done >= written.number {
            return Ok(());
        }
        let latest = self.latest().unwrap_or_else(|| written.clone());
        let synchronised = latest.file.sync_data();
        match &synchronised {
            Ok(()) => state.done = latest.number,
            Err(_) => state.failed = true,
        }
        synchronised.map_err(failed("synchronise", "the segment"))
    }

    /// Records the result of a synchronization of the log's files other than [`Self::synchronise`].
    pub fn note<E>(&self, synchronised: Result<(), E>) -> Result<(), E> {
        if synchronised.is_err() {
            self.state.lock().failed = true;
        }
        synchronised
    }

    /// Fails after any synchronization has failed.
    pub fn check(&self) -> Result<()> {
        check_usable(&self.state.lock())
    }
}

fn check_usable(state: &State) -> Result<()> {
    if state.failed {
        let reason = "accepted lines may not be on the disk; check the disk, then open the log again";
        return Err(Error::Invalid { what: "the log", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_commit_skips_data_already_synchronized() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let group = Group::default();
        group.wrote(&file);
        let first = group.latest().unwrap();
        group.wrote(&file);
        let second = group.latest().unwrap();
        group.synchronise(&first).unwrap();
        assert_eq!(group.state.lock().done, 2);
        group.synchronise(&second).unwrap();
    }

    #[test]
    fn a_failure_is_final() {
        // The ends of a pipe cannot be synchronised.
        let (reader, _writer) = std::io::pipe().unwrap();
        let group = Group::default();
        group.wrote(&Arc::new(File::from(std::os::fd::OwnedFd::from(reader))));
        assert!(group.synchronise(&group.latest().unwrap()).is_err());
        group.wrote(&Arc::new(tempfile::tempfile().unwrap()));
        assert!(group.synchronise(&group.latest().unwrap()).is_err());
        assert!(group.check().is_err());
    }
}

//! A machine's memory: a file that it shares with us if it was booted, private pages over a state's file if it was restored.

use std::fs::File;
use std::sync::Arc;

use super::pages::{self, Owner};
use crate::error::{Result, VmError, io};
use crate::sparse::{self, Quota};

const WHAT: &str = "the memory of a machine";

/// Whose the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The machine's own: what it writes is there.
    Own,
    /// A state's: what the machine writes is in its monitor's process alone.
    State,
}

/// Where a machine's memory is.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    file: Arc<File>,
    sharing: Sharing,
    length: u64,
}

impl Memory {
    /// Empty memory, for a machine that boots.
    pub(crate) fn empty(length: u64) -> Result<Self> {
        let file = Arc::new(sparse::blank(length).map_err(io("make", WHAT))?);
        Ok(Self { file, sharing: Sharing::Own, length })
    }

    /// The memory of a state; it must be as large as the machine's.
    pub(crate) fn of_state(file: &File, length: u64) -> Result<Self> {
        let found = file.metadata().map_err(io("look at", WHAT))?.len();
        if found != length {
            let what = format!("a state with {found} bytes of memory is not one of a machine with {length}");
            return Err(VmError::BadSource { what });
        }
        let file = Arc::new(file.try_clone().map_err(io("copy the descriptor of", WHAT))?);
        Ok(Self { file, sharing: Sharing::State, length })
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// A copy of it, of at most so many bytes besides holes. The machine must stand still.
    pub(crate) fn copy(&self, owner: Owner, most: u64) -> Result<File> {
        let copied = match self.sharing {
            Sharing::Own => sparse::copy_memory(&self.file, most),
            Sharing::State => sparse::blank(self.length).and_then(|into| {
                pages::copy(owner, &self.file, &into, self.length, &mut Quota::new(most))?;
                Ok(into)
            }),
        };
        copied.map_err(|error| match error.kind() {
            std::io::ErrorKind::QuotaExceeded => VmError::NoRoom { most },
            std::io::ErrorKind::PermissionDenied => VmError::NoSight { source: error },
            _ => io("copy", WHAT)(error),
        })
    }
}

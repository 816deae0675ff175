//! A VM's memory: a file shared with its VMM if it was booted, private pages over a state's file if it was restored.

use std::fs::File;
use std::sync::Arc;

use super::pages::{self, Owner};
use crate::bounds::Sharing;
use crate::error::{Result, VmError, io};
use crate::sparse::{self, Quota};

const MEMORY: &str = "the memory of a VM";

/// The location of a VM's memory.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    file: Arc<File>,
    sharing: Sharing,
    length: u64,
}

impl Memory {
    /// Creates empty memory, for a VM that boots.
    pub(crate) fn empty(length: u64) -> Result<Self> {
        let file = Arc::new(sparse::blank(length).map_err(io("create", MEMORY))?);
        Ok(Self { file, sharing: Sharing::Own, length })
    }

    /// Uses the memory of a state, which must be as large as the VM's.
    pub(crate) fn of_state(file: &File, length: u64) -> Result<Self> {
        let found = file.metadata().map_err(io("inspect", MEMORY))?.len();
        if found != length {
            let what = format!("the state has {found} bytes of memory, and the VM {length}");
            return Err(VmError::Invalid { what });
        }
        let file = Arc::new(file.try_clone().map_err(io("copy the descriptor of", MEMORY))?);
        Ok(Self { file, sharing: Sharing::State, length })
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Copies it, with a maximum of allocated bytes. The VM must be paused.
    pub(crate) fn copy(&self, owner: Owner, max: u64) -> Result<File> {
        let copied = match self.sharing {
            Sharing::Own => sparse::copy_memory(&self.file, max),
            Sharing::State => sparse::blank(self.length).and_then(|into| {
                pages::copy(owner, &self.file, &into, self.length, &mut Quota::new(max))?;
                Ok(into)
            }),
        };
        copied.map_err(|error| match error.kind() {
            std::io::ErrorKind::QuotaExceeded => VmError::SnapshotMemoryExhausted { left: max },
            std::io::ErrorKind::PermissionDenied => VmError::MemoryUnreadable { source: error },
            _ => io("copy", MEMORY)(error),
        })
    }
}

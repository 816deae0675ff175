//! How far a save or a restore is.

use std::ops::ControlFlow;

use crate::error::{ArchiveError, Result};

/// How far it is. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is done of all parts, counted as they are when restored.
    pub done: u64,
    /// All parts together.
    pub total: u64,
    /// What was written to or read from the archive so far.
    pub archive: u64,
}

/// Who is told, at least once for each MiB that is no hole. `Break` ends it with [`ArchiveError::Cancelled`].
pub(crate) type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Counts, and tells.
pub(crate) struct Meter<'a> {
    watch: Watch<'a>,
    done: u64,
    total: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(watch: Watch<'a>, total: u64) -> Self {
        Self { watch, done: 0, total }
    }

    /// So many more bytes are done, and the archive is as long as that.
    pub(crate) fn advance(&mut self, bytes: u64, archive: u64) -> Result<()> {
        self.done += bytes;
        match (self.watch)(Progress { done: self.done, total: self.total, archive }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ArchiveError::Cancelled),
        }
    }
}

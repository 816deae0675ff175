//! Progress of a save or a restore.

use std::ops::ControlFlow;

use crate::error::{ArchiveError, Result};

/// The progress of an operation. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of all parts that are done, counted at their restored size.
    pub done: u64,
    /// Size of all parts together.
    pub total: u64,
    /// Bytes written to or read from the archive so far.
    pub archive: u64,
}

/// A progress callback, called at least once for each MiB that is not a hole. `Break` ends the operation with
/// [`ArchiveError::Cancelled`].
pub(crate) type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// A counter that reports progress.
pub(crate) struct Meter<'a> {
    watch: Watch<'a>,
    done: u64,
    total: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(watch: Watch<'a>, total: u64) -> Self {
        Self { watch, done: 0, total }
    }

    /// Adds bytes that are done and reports the archive's current length.
    pub(crate) fn advance(&mut self, bytes: u64, archive: u64) -> Result<()> {
        self.done += bytes;
        match (self.watch)(Progress { done: self.done, total: self.total, archive }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ArchiveError::Cancelled),
        }
    }
}

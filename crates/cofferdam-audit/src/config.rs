//! How a log is kept.

use std::path::PathBuf;
use std::time::Duration;

/// How a log is kept. All writers of one directory should use the same settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The log's own directory, on a local file system. Made with mode 0700 if it is missing; its parent must be there.
    pub directory: PathBuf,
    /// When lines are made to survive a power cut.
    pub sync: Sync,
    /// A segment that has so many bytes or more is closed before the next execution begins. The lines of those that run
    /// still come into it, so it becomes longer than that.
    pub segment_bytes: u64,
    /// How many closed segments are kept; `None` for all.
    pub keep_segments: Option<u32>,
    /// The file of the key that signs each line; `None` for a log that anybody who can write it can also write anew.
    pub key: Option<PathBuf>,
    /// Whether something may run that cannot be logged.
    pub mandatory: Mandatory,
    /// How long to wait for other writers at most.
    pub lock_wait: Duration,
    /// Whether code and results are kept, too, and up to how many bytes an execution.
    pub artifact_bytes: Option<u64>,
}

impl Config {
    /// Mandatory, every line synchronised, segments of 64 MiB of which none is removed, no key, no artifacts.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            sync: Sync::Each,
            segment_bytes: 64 << 20,
            keep_segments: None,
            key: None,
            mandatory: Mandatory::Yes,
            lock_wait: Duration::from_secs(10),
            artifact_bytes: None,
        }
    }
}

/// When lines are made to survive a power cut. A killed process loses no line that was reported as written in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// When the kernel sees fit, by default within half a minute.
    Never,
    /// Before a call returns.
    Each,
}

/// Whether something may run that cannot be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mandatory {
    /// No: [`crate::Log::reserve`] fails.
    Yes,
    /// Yes: [`crate::Log::reserve`] succeeds and says what is wrong.
    No,
}

//! The configuration of a log.

use std::path::PathBuf;
use std::time::Duration;

/// The configuration of a log. All writers of one directory should use the same.
#[derive(Debug, Clone)]
pub struct Config {
    /// The log's own directory, on a local file system. A missing one is created with mode 0700; its parent must exist.
    pub directory: PathBuf,
    /// The synchronization of lines with the disk. Default: every line.
    pub sync: Sync,
    /// The size in bytes from which a segment is closed before the next execution begins. With 0, each execution begins
    /// a segment. Default: 64 MiB.
    pub segment_bytes: u64,
    /// The maximum number of closed segments; `None`, the default, keeps all.
    pub keep_segments: Option<u32>,
    /// The file of the key that signs each line. Without a key, the default, a user who can write to the log can also
    /// forge it.
    pub key: Option<PathBuf>,
    /// The handling of executions that cannot be logged. Default: they are rejected.
    pub mandatory: Mandatory,
    /// The maximum time to wait for other writers.
    pub lock_wait: Duration,
    /// The maximum size in bytes of an artifact; `None`, the default, stores no artifacts.
    pub artifact_bytes: Option<u64>,
}

impl Config {
    /// Returns the default configuration: mandatory, every line synchronized, segments of 64 MiB of which none is
    /// removed, no key, no artifacts.
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

/// The synchronization of lines with the disk. With either policy, a killed process loses no line that was reported as
/// written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Leaves the synchronization to the kernel, which by default does it within half a minute.
    Never,
    /// Synchronizes each line before the call returns.
    Each,
}

/// The handling of executions that cannot be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mandatory {
    /// Rejects them: [`crate::Log::reserve`] fails.
    Yes,
    /// Allows them: [`crate::Log::reserve`] succeeds, and [`crate::Reservation::problem`] has the error.
    No,
}

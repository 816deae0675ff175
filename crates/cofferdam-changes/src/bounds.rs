//! Limits of a change set.

/// Default for the maximum number of entries.
pub const MAX_ENTRIES: usize = 200_000;
/// Default for the maximum size of all contents.
pub const MAX_BYTES: u64 = 8 << 30;
/// Maximum length of a path and of the target of a link.
pub const MAX_PATH: usize = 4096;
/// Maximum length of one component of a path.
pub const MAX_NAME: usize = 255;
/// Maximum depth of directories. Each level needs two descriptors while a tree is walked.
pub const MAX_DEPTH: usize = 128;
/// Maximum length of all paths and targets of a change set, which are held in memory.
pub(crate) const MAX_NAMES: usize = 64 << 20;
/// Maximum number of files that a walk of a directory tree visits.
pub(crate) const MAX_VISITED: usize = 4_000_000;

/// Limits of a change set, for its capture and for reading it.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of entries.
    pub max_entries: usize,
    /// Maximum size of all contents, in bytes.
    pub max_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_entries: MAX_ENTRIES, max_bytes: MAX_BYTES }
    }
}

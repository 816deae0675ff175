//! Limits of volumes, exports and imports.

/// Minimum size of a volume, in bytes: a journal, tables and some files.
pub const MIN_SIZE: u64 = 16 << 20;
/// Maximum size of a volume, in bytes.
pub const MAX_SIZE: u64 = 8 << 40;
/// Maximum number of volumes in a store.
pub(crate) const MAX_VOLUMES: usize = 1000;
/// Maximum number of names in the directory of a store.
pub(crate) const MAX_NAMES: usize = 4 * MAX_VOLUMES;
/// Maximum depth of directories.
pub(crate) const MAX_DEPTH: usize = 128;
/// Maximum length of a path.
pub(crate) const MAX_PATH: usize = 4095;
/// Maximum length of a name.
pub(crate) const MAX_NAME: usize = 255;

/// Limits of an export or import. What is in a volume or in a tar is untrusted.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum size of all files, in bytes. Holes count, because a tar contains them.
    pub max_bytes: u64,
    /// Maximum number of files.
    pub max_files: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_bytes: 64 << 30, max_files: 1_000_000 }
    }
}

/// Counts files and bytes.
#[derive(Debug)]
pub(crate) struct Counter {
    bounds: Bounds,
    pub files: u64,
    pub bytes: u64,
}

impl Counter {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, files: 0, bytes: 0 }
    }

    /// Counts a file, or returns the limit that it exceeds.
    pub fn add(&mut self, bytes: u64) -> Result<(), (&'static str, u64)> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.files > self.bounds.max_files {
            return Err(("files", self.bounds.max_files));
        }
        if self.bytes > self.bounds.max_bytes {
            return Err(("bytes", self.bounds.max_bytes));
        }
        Ok(())
    }
}

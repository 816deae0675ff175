//! Streams of tar: files, directories and links with their permissions, without owners.
//!
//! Nothing is held in memory but one header. The reader verifies each entry, since archives are untrusted: it accepts
//! no absolute path and no `..`.

mod pax;
mod read;
mod write;

pub use read::TarReader;
pub use write::TarWriter;

/// The block size of an archive.
const BLOCK: usize = 512;
/// The maximum length of a path in an archive.
pub const MAX_TAR_PATH: usize = 4096;
/// The highest number of entries of one archive.
pub const MAX_TAR_ENTRIES: u64 = 4_000_000;

/// One entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    /// The kind, with what belongs to it.
    pub kind: TarKind,
    /// The path: relative, without `.`, `..` and empty components. Empty for the top directory itself.
    pub path: Vec<u8>,
    /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
    pub mode: u32,
    /// The time of the last change, in seconds since 1970.
    pub modified: i64,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TarKind {
    /// A regular file with this many bytes.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link with this target, which may be any text.
    Symlink(Vec<u8>),
    /// Another name of the file at this path.
    Link(Vec<u8>),
    /// A device or fifo.
    Other,
}

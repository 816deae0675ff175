//! The files of a volume with a size, read without the kernel's ext4 driver.
//!
//! A guest may have written anything to the file system. The reader is in safe Rust, and checks what it reads. Before it
//! starts, the geometry is compared with that of every file system of this store, since it determines how much memory
//! the reader needs. Cycles of directories end at the maximum depth.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ext4_view::{Ext4, Ext4Error, Metadata};

use crate::bounds::{MAX_DEPTH, MAX_NAME, MAX_PATH};
use crate::error::{VolumeError, shown};
use crate::export::{Entry, Properties, Visit};
use crate::name::Name;

/// Directory of every ext4 file system, for files without names that a check found.
const LOST: &[u8] = b"lost+found";
/// Maximum size of a directory, in bytes.
const MAX_DIRECTORY: u64 = 1 << 30;
/// Features of the file systems of this store.
const FEATURES: u32 = FILE_TYPE | UNCLEAN | EXTENTS | WIDE | FLEXIBLE_GROUPS;
const FILE_TYPE: u32 = 0x2;
const UNCLEAN: u32 = 0x4;
const EXTENTS: u32 = 0x40;
const WIDE: u32 = 0x80;
const FLEXIBLE_GROUPS: u32 = 0x200;

/// A reason why a file system was not read.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The file system is invalid.
    Damaged(String),
    /// The consumer of the files failed.
    Visit(VolumeError),
}

impl Problem {
    /// Returns the problem as an error of a volume.
    pub fn of(self, name: &Name) -> VolumeError {
        match self {
            Self::Damaged(reason) => VolumeError::Damaged { name: name.to_string(), reason },
            Self::Visit(error) => error,
        }
    }
}

type Result<T> = std::result::Result<T, Problem>;

fn damaged(path: &[u8]) -> impl FnOnce(Ext4Error) -> Problem {
    let path = if path.is_empty() { "its file system".to_owned() } else { shown(path) };
    move |error| Problem::Damaged(format!("{path}: {error}"))
}

fn invalid(path: &[u8], reason: &str) -> Problem {
    Problem::Damaged(format!("{}: {reason}", shown(path)))
}

/// The superblock of a file system.
#[derive(Debug)]
pub(crate) struct Superblock([u8; 1024]);

impl Superblock {
    /// Reads a superblock, and compares its geometry with that of a volume of this size.
    pub fn read(image: &File, size: u64) -> Result<Self> {
        let mut bytes = [0; 1024];
        let read = image.read_exact_at(&mut bytes, 1024);
        read.map_err(|error| Problem::Damaged(format!("its file system cannot be read: {error}")))?;
        let superblock = Self(bytes);
        let (word, half) = (|at| superblock.word(at), |at| superblock.half(at));
        let blocks = u64::from(word(0x150)) << 32 | u64::from(word(0x4));
        let is_expected = half(0x38) == 0xef53
            && word(0x18) == 2
            && word(0x14) == 0
            && blocks.checked_mul(4096) == Some(size)
            && word(0x20) == 32_768
            && (1..=65_536).contains(&word(0x28))
            && half(0x58) == 256
            && half(0xfe) == 64
            && word(0x60) & !FEATURES == 0
            && word(0x60) & WIDE != 0
            && word(0xe0) == 8;
        if is_expected {
            Ok(superblock)
        } else {
            Err(Problem::Damaged("its file system has another geometry than it was created with".to_owned()))
        }
    }

    /// Returns true if the journal has changes that are not in the file system yet.
    pub fn is_unclean(&self) -> bool {
        self.word(0x60) & UNCLEAN != 0
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.0[at + byte]))
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }
}

/// Visits all files of a file system of this size.
pub(crate) fn read(image: File, size: u64, visit: &mut Visit<'_>) -> Result<()> {
    Superblock::read(&image, size)?;
    let system = Ext4::load(Box::new(image)).map_err(damaged(b""))?;
    Reader { system, visit }.directory(b"", 0)
}

struct Reader<'a, 'b> {
    system: Ext4,
    visit: &'a mut Visit<'b>,
}

impl Reader<'_, '_> {
    /// Visits the contents of a directory, whose path begins with a slash or is empty.
    fn directory(&mut self, path: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(invalid(path, "directories are too deep"));
        }
        let whole: &[u8] = if path.is_empty() { b"/" } else { path };
        for entry in self.system.read_dir(whole).map_err(damaged(path))? {
            let name = entry.map_err(damaged(path))?.file_name().as_ref().to_vec();
            if name == b"." || name == b".." || (depth == 0 && name == LOST && self.is_lost_empty()) {
                continue;
            }
            if name.is_empty() || name.len() > MAX_NAME || name.contains(&b'/') || name.contains(&0) {
                return Err(invalid(path, "it has an invalid name"));
            }
            let path = [path, b"/", &name].concat();
            if path.len() > MAX_PATH {
                return Err(invalid(&path, "the path is too long"));
            }
            self.entry(&path, depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], depth: usize) -> Result<()> {
        let metadata = self.system.symlink_metadata(path).map_err(damaged(path))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            if metadata.len() > MAX_DIRECTORY {
                return Err(invalid(path, "the directory is too large"));
            }
            self.visit(path, &metadata, Entry::Directory)?;
            return self.directory(path, depth + 1);
        }
        if kind.is_regular_file() {
            let mut content = Content(self.system.open(path).map_err(damaged(path))?);
            let entry = Entry::File { size: metadata.len(), content: &mut content, identity: None };
            return self.visit(path, &metadata, entry);
        }
        if kind.is_symlink() {
            // The reader takes memory for the whole target.
            if metadata.len() > MAX_PATH as u64 {
                return Err(invalid(path, "the target of the link is too long"));
            }
            let target = self.system.read_link(path).map_err(damaged(path))?;
            let target = OsStr::from_bytes(target.as_ref()).to_owned();
            return self.visit(path, &metadata, Entry::Link(target));
        }
        self.visit(path, &metadata, Entry::Other)
    }

    fn visit(&mut self, path: &[u8], metadata: &Metadata, entry: Entry<'_>) -> Result<()> {
        let modified = u64::try_from(metadata.modified().seconds()).unwrap_or(0);
        let properties = Properties { mode: metadata.mode().into(), modified };
        let below = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        (self.visit)(below, properties, entry).map_err(Problem::Visit)
    }

    fn is_lost_empty(&self) -> bool {
        let path = [b"/", LOST].concat();
        let is_own = |name: &[u8]| name == b"." || name == b"..";
        self.system
            .read_dir(path.as_slice())
            .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| is_own(entry.file_name().as_ref()))))
    }
}

/// The contents of a file.
struct Content(ext4_view::File);

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_bytes(buffer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }
}

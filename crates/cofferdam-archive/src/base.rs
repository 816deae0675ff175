//! Base files, from which disks are stored as differences.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::{ArchiveError, Result, io as io_error};

/// A file identified by its SHA-256. It must not change while it is in use.
#[derive(Debug)]
pub struct Base {
    id: Digest,
    file: File,
    size: u64,
}

impl Base {
    /// Creates a base from a file whose SHA-256 the caller has just computed, or stores with an immutable image. The
    /// digest is trusted: with a wrong one, disks are restored wrongly.
    pub fn known(id: Digest, file: File) -> Result<Self> {
        let size = regular_size(&file, "base")?;
        Ok(Self { id, file, size })
    }

    /// Reads the whole file to compute its SHA-256.
    pub fn hashed(file: File) -> Result<Self> {
        let size = regular_size(&file, "base")?;
        let (mut hasher, mut at, mut buffer) = (Sha256::new(), 0, vec![0; BLOCK]);
        while at < size {
            let now = usize::try_from(size - at).unwrap_or(BLOCK).min(BLOCK);
            file.read_exact_at(&mut buffer[..now], at).map_err(io_error("read", "base"))?;
            hasher.update(&buffer[..now]);
            at += now as u64;
        }
        Ok(Self { id: Digest::finish(hasher), file, size })
    }

    /// Returns the file's SHA-256.
    pub fn id(&self) -> Digest {
        self.id
    }

    /// Returns the file's size, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads from an offset. Bytes beyond the end of the file read as zeroes.
    pub(crate) fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let available = usize::try_from(self.size.saturating_sub(at)).unwrap_or(bytes.len()).min(bytes.len());
        let (data, behind) = bytes.split_at_mut(available);
        behind.fill(0);
        self.file.read_exact_at(data, at)
    }
}

/// Returns the size of a regular file.
pub(crate) fn regular_size(file: &File, part: &str) -> Result<u64> {
    let meta = file.metadata().map_err(io_error("inspect", part))?;
    if !meta.is_file() {
        return Err(ArchiveError::UnfitFile { part: part.to_owned(), reason: "it is not a regular file" });
    }
    Ok(meta.len())
}

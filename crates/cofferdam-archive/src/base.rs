//! Files that disks are stored as differences from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

use crate::block::BLOCK;
use crate::digest::Digest;
use crate::error::{ArchiveError, Result, io as io_error};

/// A file that is known by its SHA-256. It must not change while it is used.
#[derive(Debug)]
pub struct Base {
    id: Digest,
    file: File,
    size: u64,
}

impl Base {
    /// A file whose SHA-256 the caller has just computed, or keeps with an image that nobody can change. What it says is
    /// believed: with a wrong one, disks are restored wrongly.
    pub fn known(id: Digest, file: File) -> Result<Self> {
        let size = regular_size(&file, "base")?;
        Ok(Self { id, file, size })
    }

    /// Reads the whole file for its SHA-256.
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

    /// Its SHA-256.
    pub fn id(&self) -> Digest {
        self.id
    }

    /// Its size, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads from a place; behind its end there is nothing but zeroes.
    pub(crate) fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let there = usize::try_from(self.size.saturating_sub(at)).unwrap_or(bytes.len()).min(bytes.len());
        let (data, behind) = bytes.split_at_mut(there);
        behind.fill(0);
        self.file.read_exact_at(data, at)
    }
}

/// The size of a file that has one.
pub(crate) fn regular_size(file: &File, part: &str) -> Result<u64> {
    let meta = file.metadata().map_err(io_error("look at", part))?;
    if !meta.is_file() {
        return Err(ArchiveError::UnfitFile { part: part.to_owned(), reason: "it is no regular file" });
    }
    Ok(meta.len())
}

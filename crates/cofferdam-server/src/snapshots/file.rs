//! The file of a snapshot while it is written: counted against the quota, hashed, and removed unless it is finished.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use cofferdam_util::hex;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::Snapshots;

/// A file that is written. Dropping it removes it.
#[derive(Debug)]
pub struct Writing {
    of: Arc<Snapshots>,
    tenant: TenantId,
    path: PathBuf,
    progress: Arc<Mutex<Progress>>,
    is_finished: bool,
}

#[derive(Debug)]
struct Progress {
    file: File,
    hash: Sha256,
    bytes: u64,
    /// True if the quota or the server's bound ended it.
    over: bool,
}

/// The length and hash of a finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub bytes: u64,
    pub sha256: String,
}

impl Writing {
    /// Creates the file. Its bytes are reserved as they are written.
    pub(super) fn create(of: Arc<Snapshots>, tenant: TenantId, path: PathBuf) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        let progress = Progress { file, hash: Sha256::new(), bytes: 0, over: false };
        Ok(Self { of, tenant, path, progress: Arc::new(Mutex::new(progress)), is_finished: false })
    }

    /// Returns a writer to the file.
    pub fn writer(&self) -> Writer {
        let (of, tenant) = (Arc::clone(&self.of), self.tenant.clone());
        Writer { of, tenant, progress: Arc::clone(&self.progress) }
    }

    /// Returns true if the file was ended by a quota or the server's bound.
    pub fn is_over(&self) -> bool {
        self.progress.lock().over
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the file to its place, on the disk. Blocks.
    pub(super) fn finish(mut self, to: &Path) -> Result<Finished> {
        let finished = {
            let progress = self.progress.lock();
            progress.file.sync_all().map_err(failed)?;
            Finished { bytes: progress.bytes, sha256: hex::encode(progress.hash.clone().finalize()) }
        };
        std::fs::rename(&self.path, to).map_err(failed)?;
        sync_parent(to).map_err(failed)?;
        self.is_finished = true;
        Ok(finished)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_finished {
            let mut progress = self.progress.lock();
            // A writer that is left writes no more.
            progress.over = true;
            // The next start of the server removes what is left.
            let _ = std::fs::remove_file(&self.path);
            self.of.release(&self.tenant, progress.bytes);
        }
    }
}

/// A writer to a file of a snapshot.
#[derive(Debug)]
pub struct Writer {
    of: Arc<Snapshots>,
    tenant: TenantId,
    progress: Arc<Mutex<Progress>>,
}

impl Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut progress = self.progress.lock();
        let more = data.len() as u64;
        if progress.over || progress.bytes + more > self.of.max_bytes() || !self.of.reserve(&self.tenant, more) {
            progress.over = true;
            return Err(io::Error::other("the snapshot is too large"));
        }
        progress.bytes += more;
        progress.file.write_all(data)?;
        progress.hash.update(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the names of a directory durable.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

pub(super) fn failed(error: io::Error) -> Error {
    let full = error.kind() == io::ErrorKind::StorageFull;
    let message = if full { "the server's disk is full" } else { "cannot use the file of the snapshot" };
    Error::new(ErrorKind::Unavailable, "snapshot", message).with_source(error)
}

//! Import of a tar as a new volume, which is complete or absent.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use cofferdam_tree::TreeError;
use rustix::fs::AtFlags;

use crate::bounds::Bounds;
use crate::error::{Result, VolumeError, io};
use crate::name::Name;
use crate::pending::Pending;
use crate::record::Record;
use crate::store::{Store, make_disk};
use crate::unpack::{Limits, Unpacked, unpack};
use crate::{files, remove};

/// The result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Number of files, directories and links.
    pub files: u64,
    /// Size of all files, in bytes.
    pub bytes: u64,
}

impl Store {
    /// Creates a volume with the files of a tar. `progress` gets the bytes so far.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Malformed`], [`VolumeError::TooLarge`], [`VolumeError::DoesNotFit`], [`VolumeError::Stream`], and
    /// those of [`Store::create`]. After an error, there is no volume.
    pub fn import(
        &self,
        name: &Name,
        size: Option<u64>,
        from: impl Read,
        bounds: &Bounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported> {
        self.check_new(name, size)?;
        let pending = Pending::new(self)?;
        let unpacked = fill(self, &pending.directory, size, from, bounds, progress)?;
        pending.commit(name, &Record::new(size))?;
        Ok(Imported { files: unpacked.files, bytes: unpacked.bytes })
    }
}

/// Unpacks a tar into the directory of a new volume, and makes a file system of the files if it has a size. Everything
/// is on the disk afterwards.
pub(crate) fn fill(
    store: &Store,
    directory: &OwnedFd,
    size: Option<u64>,
    from: impl Read,
    bounds: &Bounds,
    progress: &mut dyn FnMut(u64),
) -> Result<Unpacked> {
    let failed = || io("import a volume into", store.path());
    let tree = files::create_directory(directory, files::FILES, 0o755).map_err(failed())?;
    let limits = Limits { bounds: *bounds, max_stored: size.unwrap_or(bounds.max_bytes) };
    let unpacked = unpack(&tree, from, &limits, progress)?;
    let Some(size) = size else {
        rustix::fs::syncfs(&tree).map_err(io("write", store.path()))?;
        return Ok(unpacked);
    };
    // The kernel knows where the directory is. Its names are those of the store, which is private.
    let path = std::fs::read_link(format!("/proc/self/fd/{}", tree.as_raw_fd())).map_err(failed())?;
    make(directory, store.path(), size, &path, unpacked.files)?;
    remove::clear(tree.as_fd(), "").map_err(failed())?;
    rustix::fs::unlinkat(directory, files::FILES, AtFlags::REMOVEDIR).map_err(|error| failed()(error.into()))?;
    Ok(unpacked)
}

fn make(directory: &OwnedFd, shown: &Path, size: u64, tree: &Path, files: u64) -> Result<()> {
    make_disk(directory, shown, size, Some((tree, files + 1))).map_err(|error| match error {
        // Without space on the host, the tool reports that instead.
        VolumeError::Tree(TreeError::ToolFailed { output, .. }) if output.contains("Could not allocate") => {
            VolumeError::DoesNotFit { size }
        }
        error => error,
    })
}

//! Deletion of a directory with everything that was in it at the capture, and of nothing else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::Session;
use crate::change::Change;
use crate::conflict::Cause;
use crate::error::{Result, io};
use crate::fingerprint::{FileKind, Fingerprint, Subtree};
use crate::tree::{self, Spot};

impl Session<'_> {
    /// Deletes a directory tree. Returns the conflict if it differs from the tree of the capture, or if the host
    /// changes it meanwhile. A dry run only compares.
    pub(super) fn remove_tree(&self, change: &Change, spot: &Spot) -> Result<Option<Cause>> {
        let directory = tree::subdirectory(spot.parent.as_fd(), &spot.name).map_err(io("open", &change.path))?;
        let found = Subtree::walk(directory.as_fd())?;
        let recorded = change.base.as_ref().and_then(|base| base.tree.as_ref());
        if recorded != Some(&found.digest()) {
            return Ok(Some(Cause::Changed));
        }
        if found.changed_since(self.set.header().started) {
            return Ok(Some(Cause::ChangedDuringRun));
        }
        if self.options.dry_run {
            return Ok(None);
        }
        for (path, fingerprint) in found.files.iter().rev() {
            let removed = remove(directory.as_fd(), path, fingerprint);
            if !removed.map_err(io("delete", &change.path.join(path)))? {
                return Ok(Some(Cause::Changed));
            }
        }
        match rustix::fs::unlinkat(&spot.parent, &spot.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(Some(Cause::Changed)),
            Err(error) => Err(io("delete", &change.path)(error)),
        }
    }
}

/// Deletes one file or empty directory. Returns false if it is not the expected one.
fn remove(directory: BorrowedFd<'_>, path: &Path, expected: &Fingerprint) -> std::io::Result<bool> {
    let Some(spot) = tree::locate(directory, path)? else { return Ok(false) };
    let Some(stat) = spot.stat()? else { return Ok(true) };
    let now = Fingerprint::of(&stat);
    let flags = match expected.kind {
        FileKind::Directory => AtFlags::REMOVEDIR,
        _ => AtFlags::empty(),
    };
    if !is_expected(expected, &now) {
        return Ok(false);
    }
    let parent: &OwnedFd = &spot.parent;
    match rustix::fs::unlinkat(parent, &spot.name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Compares without the time that changes when another name of the same file is deleted.
fn is_expected(expected: &Fingerprint, now: &Fingerprint) -> bool {
    expected.matches(&Fingerprint { ctime: expected.ctime, ..*now })
}

//! Deletion of a directory with everything that was in it at the capture, and of nothing else.
//!
//! The directory gets a temporary name first, in one step. So a killed process leaves it whole or not at all, and the next
//! application deletes the rest.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::atomic_replace::{Temporary, exchange, put_back};
use super::leftovers::random_name;
use super::{Application, lock};
use crate::change::Change;
use crate::conflict::Cause;
use crate::error::{Result, io};
use crate::fingerprint::{FileKind, Fingerprint, Subtree};
use crate::tree::{self, Spot};

/// A directory tree of the workspace that is as it was at the capture.
struct Tree<'a> {
    directory: OwnedFd,
    found: Subtree,
    spot: &'a Spot,
    path: &'a Path,
}

impl Application<'_> {
    /// Deletes a directory tree. Returns the conflict if it differs from the tree of the capture, or if the host
    /// changes it meanwhile. A dry run only compares.
    pub(super) fn remove_tree(&self, change: &Change, spot: &Spot) -> Result<Option<Cause>> {
        match self.tree(change, spot)? {
            Err(cause) => Ok(Some(cause)),
            Ok(_) if self.options.dry_run => Ok(None),
            Ok(tree) => tree.delete(),
        }
    }

    /// Replaces a directory tree by a file or link. Returns the conflict as [`Self::remove_tree`] does.
    pub(super) fn replace_tree(
        &self,
        change: &Change,
        spot: &Spot,
        temporary: &Temporary<'_>,
    ) -> Result<Option<Cause>> {
        let tree = match self.tree(change, spot)? {
            Ok(tree) => tree,
            Err(cause) => return Ok(Some(cause)),
        };
        if !temporary.exchange(spot, &change.path)? {
            return match tree.delete()? {
                None => temporary.rename(spot, false, &change.path),
                cause => Ok(cause),
            };
        }
        let deleted = tree.delete_at(&temporary.name);
        if !matches!(deleted, Ok(None)) {
            // The rest has its own name again, and the file its temporary one.
            exchange(&spot.parent, &temporary.name, &spot.name)
                .map(drop)
                .or_else(|_| put_back(&spot.parent, &temporary.name, &spot.name))
                .map_err(io("restore", &change.path))?;
        }
        deleted
    }

    /// Compares a directory tree with that of the capture.
    fn tree<'a>(&self, change: &'a Change, spot: &'a Spot) -> Result<Result<Tree<'a>, Cause>> {
        let directory = tree::subdirectory(spot.parent.as_fd(), &spot.name).map_err(io("open", &change.path))?;
        let found = Subtree::walk(directory.as_fd())?;
        let recorded = change.base.as_ref().and_then(|base| base.tree.as_ref());
        if recorded != Some(&found.digest()) {
            return Ok(Err(Cause::Changed));
        }
        if found.changed_since(self.set.header().started) {
            return Ok(Err(Cause::ChangedDuringRun));
        }
        // Shows other processes that the directory is in use while it has a temporary name.
        let _ = lock::try_lock(&directory);
        Ok(Ok(Tree { directory, found, spot, path: &change.path }))
    }
}

impl Tree<'_> {
    /// Gives the directory a temporary name, and deletes it. Returns the conflict if the host changes it meanwhile.
    fn delete(&self) -> Result<Option<Cause>> {
        let Spot { parent, name } = self.spot;
        let aside = random_name().map_err(io("delete", self.path))?;
        match rustix::fs::renameat_with(parent, name, parent, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            // The file system cannot rename the directory, such as an overlay that has it from a lower layer.
            Err(_) => return self.delete_at(name),
        }
        let deleted = self.delete_at(&aside);
        if !matches!(deleted, Ok(None)) {
            put_back(parent, &aside, name).map_err(io("restore", self.path))?;
        }
        deleted
    }

    fn delete_at(&self, name: &OsStr) -> Result<Option<Cause>> {
        let parent = &self.spot.parent;
        let found = tree::stat(parent.as_fd(), name).map_err(io("inspect", self.path))?;
        let own = rustix::fs::fstat(&self.directory).map_err(io("inspect", self.path))?;
        if found.is_none_or(|found| (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)) {
            return Ok(Some(Cause::Changed));
        }
        for (path, fingerprint) in self.found.files.iter().rev() {
            let removed = remove(self.directory.as_fd(), path, fingerprint);
            if !removed.map_err(io("delete", &self.path.join(path)))? {
                return Ok(Some(Cause::Changed));
            }
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(Some(Cause::Changed)),
            Err(error) => Err(io("delete", self.path)(error)),
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

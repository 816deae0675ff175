//! Files of change sets that a caller saved outside of the store.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use cofferdam_linux::named;
use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, Stat, Uid};

use crate::apply::Temporary;
use crate::bounds::Bounds;
use crate::discard::{Discarded, Remainder};
use crate::error::{ChangesError, Result, io};
use crate::glob::Globs;
use crate::read::ChangeSet;
use crate::tree::Spot;
use crate::{text, tree};

/// Opens a saved change set, so that it can be deleted. No link is followed.
///
/// # Errors
///
/// [`ChangesError::NotAChangeSet`], [`ChangesError::TooLarge`], and those of the operating system.
pub fn open_saved(path: &Path, bounds: &Bounds) -> Result<SavedFile> {
    let wrong = |reason: String| ChangesError::NotAChangeSet { path: text::path(path), reason };
    let Some(name) = path.file_name() else { return Err(wrong("it is a directory".to_owned())) };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = named::Directory::open(parent).map_err(io("open", parent))?;
    let opened = tree::open_file(directory.as_fd(), name).map_err(io("open", path))?;
    let Some((file, _)) = opened else { return Err(wrong("it is not a plain file".to_owned())) };
    let again = file.try_clone().map_err(io("open", path))?;
    match ChangeSet::read(again, bounds) {
        Ok(set) => Ok(SavedFile { set, file, directory, path: path.to_owned(), bounds: *bounds }),
        Err(ChangesError::Malformed { reason, .. }) => Err(wrong(reason)),
        Err(error) => Err(error),
    }
}

/// A file with a change set.
#[derive(Debug)]
pub struct SavedFile {
    set: ChangeSet,
    file: File,
    directory: named::Directory,
    path: PathBuf,
    bounds: Bounds,
}

impl SavedFile {
    /// Returns the change set.
    #[must_use]
    pub fn set(&self) -> &ChangeSet {
        &self.set
    }

    /// Deletes the file, unless another one has its name now.
    ///
    /// # Errors
    ///
    /// [`ChangesError::NotAChangeSet`] for another file, and those of the operating system.
    pub fn discard(self) -> Result<()> {
        self.check()?;
        self.remove()
    }

    /// Removes matching changes from the file, or the file if nothing else is in it. `directory` is the workspace. After
    /// an error or a kill, the file is as before.
    ///
    /// # Errors
    ///
    /// [`ChangesError::NoMatch`], those of [`SavedFile::discard`], and those of the operating system.
    pub fn discard_only(self, directory: BorrowedFd<'_>, only: &Globs) -> Result<Discarded> {
        let path = &self.path;
        // Of two removals at once, the second finds another file under the name.
        rustix::fs::flock(&self.file, FlockOperation::LockExclusive).map_err(io("lock", path))?;
        let own = self.check()?;
        let rest = Remainder::of(&self.set, directory, only)?;
        if rest.is_empty() {
            self.remove()?;
            return Ok(rest.discarded);
        }
        let parent = tree::open_directory(self.directory.as_fd(), Path::new("")).map_err(io("open", path))?;
        let temporary = Temporary::create(&parent).map_err(io("write", path))?;
        let Some(file) = temporary.file() else { return Err(ChangesError::NoMatch) };
        rest.write(file)?;
        // Nothing replaces a change set that the reader would refuse.
        ChangeSet::read(file.try_clone().map_err(io("read", path))?, &self.bounds)?;
        if rustix::process::geteuid().is_root() {
            let (user, group) = (Uid::from_raw(own.st_uid), Gid::from_raw(own.st_gid));
            rustix::fs::fchown(file, Some(user), Some(group)).map_err(io("write", path))?;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(own.st_mode & 0o777)).map_err(io("write", path))?;
        file.sync_all().map_err(io("write", path))?;
        self.check()?;
        let spot = Spot { parent: parent.try_clone().map_err(io("open", path))?, name: self.name().to_owned() };
        if temporary.rename(&spot, true, path)?.is_some() {
            return Err(self.replaced());
        }
        rustix::fs::fsync(&parent).map_err(io("write", path))?;
        Ok(rest.discarded)
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the properties of the file, unless another one has its name now.
    fn check(&self) -> Result<Stat> {
        let own = rustix::fs::fstat(&self.file).map_err(io("inspect", &self.path))?;
        let found = tree::stat(self.directory.as_fd(), self.name()).map_err(io("inspect", &self.path))?;
        if found.is_some_and(|found| (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)) {
            return Err(self.replaced());
        }
        Ok(own)
    }

    fn replaced(&self) -> ChangesError {
        let reason = "it was replaced meanwhile".to_owned();
        ChangesError::NotAChangeSet { path: text::path(&self.path), reason }
    }

    fn remove(&self) -> Result<()> {
        rustix::fs::unlinkat(&self.directory, self.name(), AtFlags::empty()).map_err(io("discard", &self.path))
    }
}

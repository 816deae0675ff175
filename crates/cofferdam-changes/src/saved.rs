//! Files of change sets that a caller saved outside of the store.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use cofferdam_linux::named;
use rustix::fs::AtFlags;

use crate::bounds::Bounds;
use crate::error::{ChangesError, Result, io};
use crate::read::ChangeSet;
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
        Ok(set) => Ok(SavedFile { set, file, directory, path: path.to_owned() }),
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
    path: std::path::PathBuf,
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
        let Self { file, directory, path, .. } = self;
        let name = path.file_name().unwrap_or_default();
        let own = rustix::fs::fstat(&file).map_err(io("inspect", &path))?;
        let found = tree::stat(directory.as_fd(), name).map_err(io("inspect", &path))?;
        if found.is_some_and(|found| (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)) {
            let reason = "it was replaced meanwhile".to_owned();
            return Err(ChangesError::NotAChangeSet { path: text::path(&path), reason });
        }
        rustix::fs::unlinkat(&directory, name, AtFlags::empty()).map_err(io("discard", &path))
    }
}

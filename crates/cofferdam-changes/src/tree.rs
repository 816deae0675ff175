//! Access to files of a directory that other processes may change: by descriptors, never through links.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use cofferdam_linux::beneath;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Number of attempts to look up a path while other processes rename its parts.
const MAX_RACE_TRIES: usize = 128;

/// A name in an opened directory.
#[derive(Debug)]
pub(crate) struct Spot {
    pub parent: OwnedFd,
    pub name: OsString,
}

impl Spot {
    /// Returns the properties of the file, or `None` if there is none.
    pub fn stat(&self) -> io::Result<Option<Stat>> {
        stat(self.parent.as_fd(), &self.name)
    }
}

/// Opens a directory beneath `root`. A component that is a symbolic link returns `ELOOP`.
pub(crate) fn open_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // With NOFOLLOW, a link in place of the directory itself would only be reported as another type.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    for _ in 0..MAX_RACE_TRIES {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens the parent directory of a path beneath `root`. Returns `None` if a parent is missing or is not a directory.
/// A link on the way returns `ELOOP`.
pub(crate) fn locate(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Spot>> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    match open_directory(root, path.parent().unwrap_or(Path::new(""))) {
        Ok(parent) => Ok(Some(Spot { parent, name: name.to_owned() })),
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the properties of a name without following it, or `None` if there is no file.
pub(crate) fn stat(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the type of a file.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the size of a file.
pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Returns the sorted names in a directory, of which there may be `max`.
pub(crate) fn names(directory: BorrowedFd<'_>, max: usize) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            if names.len() >= max {
                return Err(io::Error::other("too many files"));
            }
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Opens a directory by its name, which may not be a link.
pub(crate) fn subdirectory(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

/// Opens a plain file for reading. Checks the type first, so that no fifo blocks and no device is opened. Returns
/// `None` for any other type.
pub(crate) fn open_file(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<(File, Stat)>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&handle)?;
    if kind(&found) != FileType::RegularFile {
        return Ok(None);
    }
    Ok(Some((File::from(beneath::reopen(&handle, OFlags::RDONLY)?), found)))
}

/// Returns the target of a symbolic link.
pub(crate) fn target(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OsString> {
    let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
    Ok(OsStr::from_bytes(target.to_bytes()).to_owned())
}

//! Removing and counting files beneath a descriptor.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, statat, unlinkat};
use rustix::io::Errno;

use super::Result;
use super::tree::{MAX_DEPTH, Needs, failed, too_deep};

/// Maximum depth of what is removed: a tree of the maximum depth, and the directories around it.
const MAX_REMOVED_DEPTH: usize = MAX_DEPTH + 16;

pub(crate) fn kind_of(parent: BorrowedFd<'_>, name: &OsStr) -> Option<FileType> {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|found| FileType::from_raw_mode(found.st_mode))
}

/// Removes the entry with this name, of any kind. A missing entry is no error.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &OsStr, depth: usize) -> Result<()> {
    if depth > MAX_REMOVED_DEPTH {
        return Err(too_deep());
    }
    let wrong = |error: Errno| failed(Path::new(name), error.into());
    match kind_of(parent, name) {
        None => Ok(()),
        Some(FileType::Directory) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(wrong)?;
            // Its files cannot be removed without write permission.
            rustix::fs::fchmod(&directory, Mode::RWXU).map_err(wrong)?;
            clear(directory.as_fd(), depth + 1)?;
            unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(wrong)
        }
        Some(_) => unlinkat(parent, name, AtFlags::empty()).map_err(wrong),
    }
}

/// Removes everything in a directory.
pub(crate) fn clear(directory: BorrowedFd<'_>, depth: usize) -> Result<()> {
    names(directory)?.iter().try_for_each(|name| remove(directory, name, depth))
}

/// Counts everything in a directory.
pub(crate) fn count(directory: BorrowedFd<'_>, needs: &mut Needs, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for name in names(directory)? {
        let wrong = |error: Errno| failed(Path::new(&name), error.into());
        let found = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?;
        needs.add(u64::try_from(found.st_size).unwrap_or(0));
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let child = rustix::fs::openat(directory, &name, flags, Mode::empty()).map_err(wrong)?;
            count(child.as_fd(), needs, depth + 1)?;
        }
    }
    Ok(())
}

fn names(directory: BorrowedFd<'_>) -> Result<Vec<OsString>> {
    let wrong = |error: Errno| failed(Path::new("a directory"), error.into());
    let names = Dir::read_from(directory)
        .map_err(wrong)?
        .map(|entry| entry.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec())))
        .collect::<rustix::io::Result<Vec<_>>>()
        .map_err(wrong)?;
    Ok(names.into_iter().filter(|name| name != "." && name != "..").collect())
}

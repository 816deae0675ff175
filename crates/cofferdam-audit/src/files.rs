//! Access to the directories and files of a log by descriptor. Files that another user could have placed there are
//! rejected.

use std::ffi::CStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use cofferdam_linux::trust::{self, Secrecy};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use crate::error::failed;
use crate::{Error, Result};

/// The maximum number of entries that are read from a directory.
const MAX_ENTRIES: usize = 1 << 20;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Open flags that do not wait for the other end of a pipe.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens the log's directory for a writer. Creates a missing one with mode 0700, and rejects one that others can write
/// to.
pub(crate) fn own_directory(path: &Path) -> Result<OwnedFd> {
    const SHOWN: &str = "the log's directory";
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("make", SHOWN)(error)),
    }
    let directory = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(failed("open", SHOWN))?;
    mine(&directory, SHOWN)?;
    trust::check(path, Secrecy::Public)?;
    Ok(directory)
}

/// Opens the log's directory for a reader.
pub(crate) fn any_directory(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, DIRECTORY, Mode::empty()).map_err(failed("open", "the log's directory"))
}

/// Opens a directory again, for a lock of its own.
pub(crate) fn reopen(directory: impl AsFd) -> Result<OwnedFd> {
    openat(directory, ".", DIRECTORY, Mode::empty()).map_err(failed("open", "the log's directory"))
}

/// Opens a subdirectory for a reader, if it exists.
pub(crate) fn subdirectory(parent: impl AsFd, name: &'static str) -> Result<Option<OwnedFd>> {
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("open", name)(error)),
    }
}

/// Opens a subdirectory for a writer. Creates a missing one.
pub(crate) fn own_subdirectory(parent: impl AsFd, name: &'static str) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(parent.as_fd(), name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("make", name)(error)),
    }
    let directory = openat(parent, name, DIRECTORY, Mode::empty()).map_err(failed("open", name))?;
    mine(&directory, name)?;
    Ok(directory)
}

/// Opens an own file to append to it and to read it.
pub(crate) fn open_own(directory: impl AsFd, name: &str) -> Result<File> {
    open_to_write(directory, name, OFlags::APPEND)
}

/// Opens an own file to write at any offset.
pub(crate) fn open_own_anywhere(directory: impl AsFd, name: &str) -> Result<File> {
    open_to_write(directory, name, OFlags::empty())
}

fn open_to_write(directory: impl AsFd, name: &str, flags: OFlags) -> Result<File> {
    let fd = openat(directory, name, FILE | OFlags::RDWR | flags, Mode::empty()).map_err(not_a_link("open", name))?;
    mine(&fd, name)?;
    regular(&stat(&fd, name)?, name)?;
    Ok(fd.into())
}

/// Creates a file with mode 0600 to write and to read. Fails if it exists.
pub(crate) fn create(directory: impl AsFd, name: &str) -> Result<File> {
    let flags = FILE | OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
    let fd = openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make", name))?;
    // The umask may have removed permissions.
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed("set the mode of", name))?;
    Ok(fd.into())
}

/// Opens a regular file of any owner to read it.
pub(crate) fn open_regular(directory: impl AsFd, path: impl rustix::path::Arg + Copy, shown: &str) -> Result<File> {
    let fd = openat(directory, path, FILE | OFlags::RDONLY, Mode::empty()).map_err(not_a_link("open", shown))?;
    regular(&stat(&fd, shown)?, shown)?;
    Ok(fd.into())
}

/// Removes a file, if it exists.
pub(crate) fn remove(directory: impl AsFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("remove", name)(error)),
    }
}

/// Returns the names in a directory that are UTF-8.
pub(crate) fn names(directory: impl AsFd) -> Result<Vec<String>> {
    const SHOWN: &str = "the log's directory";
    let entries = Dir::read_from(directory).map_err(failed("list", SHOWN))?;
    let mut names = Vec::new();
    for entry in entries.take(MAX_ENTRIES) {
        let entry = entry.map_err(failed("list", SHOWN))?;
        names.extend(text(entry.file_name()).filter(|name| name != "." && name != ".."));
    }
    Ok(names)
}

/// Returns the metadata of an open file.
pub(crate) fn stat(fd: impl AsFd, name: &str) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(failed("inspect", name))
}

fn text(name: &CStr) -> Option<String> {
    name.to_str().ok().map(str::to_owned)
}

fn mine(fd: impl AsFd, name: &str) -> Result<()> {
    let stat = stat(fd, name)?;
    let untrusted = |reason| Err(Error::Untrusted { name: name.to_owned(), reason });
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return untrusted("it belongs to another user; give the log a directory of its own");
    }
    if stat.st_mode & 0o022 != 0 {
        return untrusted("others can write to it; remove that permission (chmod go-w), and verify the log");
    }
    Ok(())
}

fn regular(stat: &Stat, name: &str) -> Result<()> {
    let untrusted = |reason| Err(Error::Untrusted { name: name.to_owned(), reason });
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return untrusted("it is not a regular file; remove it");
    }
    if stat.st_nlink > 1 {
        return untrusted("it has a second hard link, through which it can be changed; copy it and remove both");
    }
    Ok(())
}

fn not_a_link<'a>(doing: &'static str, name: &'a str) -> impl FnOnce(Errno) -> Error + 'a {
    move |error| match error {
        Errno::LOOP => Error::Untrusted { name: name.to_owned(), reason: "it is a symbolic link; remove it" },
        other => failed(doing, name)(other),
    }
}

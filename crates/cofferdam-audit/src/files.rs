//! Opens directories and files of the log by descriptor, and refuses those that somebody else could have put there.

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

/// More entries than a directory of ours has.
const MOST_ENTRIES: usize = 1 << 20;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Without waiting for the other end of a pipe, should one lie there.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The log's directory for a writer: made if it is missing, with mode 0700; nobody else may write in it.
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

/// The log's directory for a reader.
pub(crate) fn any_directory(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, DIRECTORY, Mode::empty()).map_err(failed("open", "the log's directory"))
}

/// The same directory by a descriptor of its own, whose lock is not shared.
pub(crate) fn reopen(directory: impl AsFd) -> Result<OwnedFd> {
    openat(directory, ".", DIRECTORY, Mode::empty()).map_err(failed("open", "the log's directory"))
}

/// A directory in the log's for a reader, if it is there.
pub(crate) fn subdirectory(parent: impl AsFd, name: &'static str) -> Result<Option<OwnedFd>> {
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("open", name)(error)),
    }
}

/// A directory in the log's, made if it is missing.
pub(crate) fn own_subdirectory(parent: impl AsFd, name: &'static str) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(parent.as_fd(), name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("make", name)(error)),
    }
    let directory = openat(parent, name, DIRECTORY, Mode::empty()).map_err(failed("open", name))?;
    mine(&directory, name)?;
    Ok(directory)
}

/// Opens a file of ours to append to it and to read it.
pub(crate) fn open_own(directory: impl AsFd, name: &str) -> Result<File> {
    open_to_write(directory, name, OFlags::APPEND)
}

/// Opens a file of ours to write anywhere in it.
pub(crate) fn open_own_anywhere(directory: impl AsFd, name: &str) -> Result<File> {
    open_to_write(directory, name, OFlags::empty())
}

fn open_to_write(directory: impl AsFd, name: &str, flags: OFlags) -> Result<File> {
    let fd = openat(directory, name, FILE | OFlags::RDWR | flags, Mode::empty()).map_err(not_a_link("open", name))?;
    mine(&fd, name)?;
    regular(&stat(&fd, name)?, name)?;
    Ok(fd.into())
}

/// Makes a file with mode 0600 that was not there before, to write and to read.
pub(crate) fn create(directory: impl AsFd, name: &str) -> Result<File> {
    let flags = FILE | OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
    let fd = openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make", name))?;
    // The process's mask may have taken more than it should.
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed("set the mode of", name))?;
    Ok(fd.into())
}

/// Opens a regular file to read it, whoever owns it.
pub(crate) fn open_regular(directory: impl AsFd, path: impl rustix::path::Arg + Copy, shown: &str) -> Result<File> {
    let fd = openat(directory, path, FILE | OFlags::RDONLY, Mode::empty()).map_err(not_a_link("open", shown))?;
    regular(&stat(&fd, shown)?, shown)?;
    Ok(fd.into())
}

/// Removes a file; that it is missing is as good.
pub(crate) fn remove(directory: impl AsFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("remove", name)(error)),
    }
}

/// Names in a directory that are text; others are not ours.
pub(crate) fn names(directory: impl AsFd) -> Result<Vec<String>> {
    const SHOWN: &str = "the log's directory";
    let entries = Dir::read_from(directory).map_err(failed("list", SHOWN))?;
    let mut names = Vec::new();
    for entry in entries.take(MOST_ENTRIES) {
        let entry = entry.map_err(failed("list", SHOWN))?;
        names.extend(text(entry.file_name()).filter(|name| name != "." && name != ".."));
    }
    Ok(names)
}

/// What the kernel knows of an open file.
pub(crate) fn stat(fd: impl AsFd, name: &str) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(failed("look at", name))
}

fn text(name: &CStr) -> Option<String> {
    name.to_str().ok().map(str::to_owned)
}

fn mine(fd: impl AsFd, name: &str) -> Result<()> {
    let stat = stat(fd, name)?;
    let untrusted = |reason| Err(Error::Untrusted { name: name.to_owned(), reason });
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return untrusted("it belongs to somebody else; give the log a directory of its own");
    }
    if stat.st_mode & 0o022 != 0 {
        return untrusted("others can write to it; take that right away (chmod go-w), and verify the log");
    }
    Ok(())
}

fn regular(stat: &Stat, name: &str) -> Result<()> {
    let untrusted = |reason| Err(Error::Untrusted { name: name.to_owned(), reason });
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return untrusted("it is no regular file; remove it");
    }
    if stat.st_nlink > 1 {
        return untrusted("it has a second name, by which it can be changed; copy it and remove both");
    }
    Ok(())
}

fn not_a_link<'a>(doing: &'static str, name: &'a str) -> impl FnOnce(Errno) -> Error + 'a {
    move |error| match error {
        Errno::LOOP => Error::Untrusted { name: name.to_owned(), reason: "it is a symbolic link; remove it" },
        other => failed(doing, name)(other),
    }
}

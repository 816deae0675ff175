//! Removal of trees that guests made: of any depth, and with any permissions.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Removes everything but `retained` in a directory that no other process uses.
///
/// A subdirectory is moved to the top before its contents are removed. So the depth of the tree does not matter.
pub(crate) fn clear(top: BorrowedFd<'_>, retained: &str) -> io::Result<()> {
    let mut moved = 0_u64;
    loop {
        let mut names = names(top)?;
        names.retain(|name| name.as_bytes() != retained.as_bytes());
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            let name = OsStr::from_bytes(name.as_bytes());
            match rustix::fs::unlinkat(top, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Linux reports ISDIR, POSIX PERM.
                Err(Errno::ISDIR | Errno::PERM) => flatten(top, name, &mut moved)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Removes the files of a subdirectory and the subdirectory itself, and moves its subdirectories to the top.
fn flatten(top: BorrowedFd<'_>, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    let directory = open(top, name)?;
    let mut left = names(directory.as_fd())?;
    while let Some(next) = left.pop() {
        let name = OsStr::from_bytes(next.as_bytes());
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => {
                // The kernel changes `..` of a directory that moves, for which its owner needs permission.
                open(directory.as_fd(), name)?;
                loop {
                    *moved += 1;
                    let target = format!(".removed-{moved}");
                    let flags = rustix::fs::RenameFlags::NOREPLACE;
                    match rustix::fs::renameat_with(&directory, name, top, &target, flags) {
                        Ok(()) => break,
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Err(error) => return Err(error.into()),
        }
        if left.is_empty() {
            left = names(directory.as_fd())?;
        }
    }
    Ok(rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)?)
}

/// Opens a directory, and gives its owner all permissions.
fn open(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let found = rustix::fs::openat(above, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    if stat.st_mode & 0o700 != 0o700 {
        rustix::fs::chmod(&path, Mode::RWXU)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, path, flags, Mode::empty())?)
}

fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    /// Names that are read at once. The caller reads again until there are none.
    const MAX: usize = 10_000;
    let is_own = |name: &CString| name.as_bytes() != b"." && name.as_bytes() != b"..";
    let names = Dir::read_from(directory)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    Ok(names.filter(|name| name.as_ref().map_or(true, is_own)).take(MAX).collect::<Result<_, _>>()?)
}

//! Space that a volume takes on the host.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, Dir, FileType};

use crate::bounds::MAX_DEPTH;
use crate::files;

/// Maximum number of files that are counted.
const MAX_COUNTED: u64 = 200_000;

/// Returns the space of a disk, in bytes. Holes take none.
pub(crate) fn of_disk(disk: &File) -> io::Result<u64> {
    Ok(disk.metadata()?.blocks().saturating_mul(512))
}

/// Returns the space of a tree, in bytes. Returns `None` for a tree that is too large or too deep, or has closed
/// directories.
pub(crate) fn of_tree(top: BorrowedFd<'_>) -> Option<u64> {
    let (mut bytes, mut count) = (0, 0);
    add(top, 0, &mut bytes, &mut count).ok()?;
    Some(bytes)
}

fn add(directory: BorrowedFd<'_>, depth: usize, bytes: &mut u64, count: &mut u64) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        *count += 1;
        if *count > MAX_COUNTED || depth > MAX_DEPTH {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        *bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            add(files::directory(directory, name)?.as_fd(), depth + 1, bytes, count)?;
        }
    }
    Ok(())
}

//! Marks of overlayfs on files of its upper directory, in the namespaces of root and of users.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Stat};

use crate::tree;

const NAMESPACES: [&str; 2] = ["trusted.overlay.", "user.overlay."];

/// An extended attribute with a meaning for the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// An empty file stands for a deleted one.
    Whiteout,
    /// The contents are still in the lower directory.
    Metacopy,
    /// The directory is merged with one of another name.
    Redirect,
}

/// Returns true for the device that stands for a deleted file.
pub(crate) fn is_whiteout_device(stat: &Stat) -> bool {
    tree::kind(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Returns true if a directory hides the contents of the lower one.
pub(crate) fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    NAMESPACES.iter().any(|space| value(directory, &format!("{space}opaque")).as_deref() == Some(b"y"))
}

/// Returns the mark of an opened file or directory.
pub(crate) fn mark(file: &impl AsFd) -> Option<Mark> {
    let marks = [("whiteout", Mark::Whiteout), ("metacopy", Mark::Metacopy), ("redirect", Mark::Redirect)];
    let has = |name: &str| NAMESPACES.iter().any(|space| exists(file.as_fd(), &format!("{space}{name}")));
    marks.into_iter().find(|(name, _)| has(name)).map(|(_, mark)| mark)
}

fn value(file: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    let mut bytes = [0; 16];
    let length = rustix::fs::fgetxattr(file, name, &mut bytes[..]).ok()?;
    bytes.get(..length).map(<[u8]>::to_vec)
}

fn exists(file: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::fgetxattr(file, name, &mut [0_u8; 0][..]).is_ok()
}

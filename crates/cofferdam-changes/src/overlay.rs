//! Marks of overlayfs on files of its upper directory.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Stat};

use crate::tree;

/// The extended attributes in which an overlay keeps its marks. The other ones belong to the guest, which may write
/// anything there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Those of root. No guest can set them.
    Trusted,
    /// Those of the overlay's user, for an overlay with the option `userxattr`. That overlay refuses them to guests.
    User,
}

impl Marks {
    fn prefix(self) -> &'static str {
        match self {
            Self::Trusted => "trusted.overlay.",
            Self::User => "user.overlay.",
        }
    }
}

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
pub(crate) fn is_opaque(directory: BorrowedFd<'_>, marks: Marks) -> bool {
    value(directory, &format!("{}opaque", marks.prefix())).as_deref() == Some(b"y")
}

/// Makes a directory hide the contents of the lower one.
#[cfg(feature = "sandbox")]
pub(crate) fn make_opaque(directory: impl AsFd, marks: Marks) -> std::io::Result<()> {
    let name = format!("{}opaque", marks.prefix());
    Ok(rustix::fs::fsetxattr(directory, name, b"y", rustix::fs::XattrFlags::empty())?)
}

/// Returns the mark of an opened file or directory.
pub(crate) fn mark(file: &impl AsFd, marks: Marks) -> Option<Mark> {
    let known = [("whiteout", Mark::Whiteout), ("metacopy", Mark::Metacopy), ("redirect", Mark::Redirect)];
    let has = |name: &str| exists(file.as_fd(), &format!("{}{name}", marks.prefix()));
    known.into_iter().find(|(name, _)| has(name)).map(|(_, mark)| mark)
}

fn value(file: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    let mut bytes = [0; 16];
    let length = rustix::fs::fgetxattr(file, name, &mut bytes[..]).ok()?;
    bytes.get(..length).map(<[u8]>::to_vec)
}

fn exists(file: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::fgetxattr(file, name, &mut [0_u8; 0][..]).is_ok()
}

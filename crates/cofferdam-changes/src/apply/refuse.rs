//! Changes that are not applied, whatever the state of the workspace.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::beneath;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::leftovers;
use crate::aliases::Aliases;
use crate::change::{Change, Node};
use crate::error::{ChangesError, Result, io};
use crate::glob::Globs;
use crate::guarded;
use crate::read::ChangeSet;
use crate::tree;

/// Reason why a change is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The file would run with the rights of its owner or group.
    SetId,
    /// The link is absolute, leads out of the workspace, or has `..` after another component.
    LinkOutside,
    /// A directory on the path is a symbolic link on the host.
    LinkOnPath,
    /// A program on the host executes or obeys the file without being asked. Has the reason.
    Guarded(&'static str),
    /// The file is in a directory of Cofferdam's own, such as that of its settings, or would replace one.
    OwnDirectory,
    /// The name has the form of a temporary name of an application. The next application would delete the file.
    ReservedName,
    /// The file system of the workspace does not accept the name or the type.
    Unsupported,
}

impl Refusal {
    /// Returns the reason behind an error that only concerns its change.
    pub(crate) fn of(error: &ChangesError) -> Option<Self> {
        let ChangesError::Io { source, .. } = error else { return None };
        match Errno::from_io_error(source)? {
            Errno::LOOP => Some(Self::LinkOnPath),
            Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ | Errno::OPNOTSUPP => Some(Self::Unsupported),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetId => f.write_str("set-user-ID and set-group-ID files are never applied"),
            Self::LinkOutside => f.write_str("the link is absolute or leads out of the workspace"),
            Self::LinkOnPath => f.write_str("a directory on the path is a symbolic link on the host"),
            Self::Guarded(reason) => write!(f, "{reason}; allow the path by name if you trust its contents"),
            Self::OwnDirectory => f.write_str(
                "a directory of Cofferdam's own, whose files decide what sandboxes may do, is never changed",
            ),
            Self::ReservedName => f.write_str("the name is reserved for temporary files of this program"),
            Self::Unsupported => f.write_str("the file system of the workspace does not accept the file"),
        }
    }
}

/// A change that was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Reason.
    pub reason: Refusal,
}

/// Returns the reason to refuse a change.
pub(crate) fn reason(
    set: &ChangeSet,
    directory: BorrowedFd<'_>,
    change: &Change,
    allow: &Globs,
    aliases: &Aliases,
) -> Result<Option<Refusal>> {
    if change.node.is_some() && change.path.iter().any(leftovers::is_temporary) {
        return Ok(Some(Refusal::ReservedName));
    }
    if let Some(reason) = guard(set, directory, change, aliases)
        && !allow.matches(&change.path)
    {
        return Ok(Some(Refusal::Guarded(reason)));
    }
    match &change.node {
        Some(Node::File { mode, .. }) if mode & 0o6000 != 0 => Ok(Some(Refusal::SetId)),
        Some(Node::Symlink { target }) if leads_outside(directory, &change.path, Path::new(target))? => {
            Ok(Some(Refusal::LinkOutside))
        }
        _ => Ok(None),
    }
}

/// Returns the reason why a change needs the permission of the caller.
pub(crate) fn guard(
    set: &ChangeSet,
    directory: BorrowedFd<'_>,
    change: &Change,
    aliases: &Aliases,
) -> Option<&'static str> {
    let exists = |path: &Path| set.contains(path) || is_on_host(directory, path);
    let listed = guarded::reason(change).or_else(|| aliases.reason(change));
    listed.or_else(|| guarded::bare_repository(&change.path, exists))
}

fn is_on_host(directory: BorrowedFd<'_>, path: &Path) -> bool {
    let spot = tree::locate(directory, path).ok().flatten();
    spot.is_some_and(|spot| tree::stat(spot.parent.as_fd(), &spot.name).is_ok_and(|stat| stat.is_some()))
}

/// Returns true if a link leads out of the workspace, itself or through links of the host.
///
/// Only the first components may be `..`: behind another link, `..` leads to the parent of that link's target.
fn leads_outside(directory: BorrowedFd<'_>, path: &Path, target: &Path) -> Result<bool> {
    let mut resolved = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut descended = false;
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => {
                descended = true;
                resolved.push(name);
            }
            Component::ParentDir if !descended && resolved.pop() => {}
            _ => return Ok(true),
        }
    }
    match beneath::open(directory, &resolved, OFlags::PATH, Mode::empty()) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) => Ok(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => Err(io("inspect", path)(error)),
        // A link that leads nowhere is harmless.
        _ => Ok(false),
    }
}

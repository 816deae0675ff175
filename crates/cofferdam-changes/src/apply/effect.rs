//! Effect of a change on the workspace as it is now.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::FileType;

use super::atomic_replace;
use crate::change::{Change, Node};
use crate::error::{Result, io};
use crate::read::ChangeSet;
use crate::tree::{self, Spot};

/// Effect of a change on the workspace as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The workspace has the change already.
    None,
    /// Creates a file, link or directory.
    Add,
    /// Replaces a file, link or directory.
    Replace,
    /// Sets the permissions of a directory.
    SetMode,
    /// Deletes a file, or a directory with everything in it.
    Delete,
}

/// Returns the effect that the change of a path has, unless it is a conflict or is refused. A path without a change of
/// its own is one of a cleared directory.
///
/// # Errors
///
/// Those of the operating system.
pub fn effect(set: &ChangeSet, directory: BorrowedFd<'_>, path: &Path) -> Result<Effect> {
    match set.get(path) {
        Some(change) => effect_of(set, directory, change),
        None => effect_of(set, directory, &Change::new(path.to_owned(), None, None)),
    }
}

pub(crate) fn effect_of(set: &ChangeSet, directory: BorrowedFd<'_>, change: &Change) -> Result<Effect> {
    let spot = tree::locate(directory, &change.path).map_err(io("open", &change.path))?;
    let now = spot.as_ref().map(Spot::stat).transpose().map_err(io("inspect", &change.path))?.flatten();
    let (Some(spot), Some(now)) = (&spot, &now) else {
        return Ok(if change.node.is_some() { Effect::Add } else { Effect::None });
    };
    Ok(match &change.node {
        None => Effect::Delete,
        Some(Node::Directory { mode }) if tree::kind(now) == FileType::Directory => {
            let is_equal = change.base.is_none() || (now.st_mode ^ mode) & 0o777 == 0;
            if is_equal { Effect::None } else { Effect::SetMode }
        }
        Some(node) if atomic_replace::is_same(set, node, spot, now).map_err(io("compare", &change.path))? => {
            Effect::None
        }
        Some(_) => Effect::Replace,
    })
}

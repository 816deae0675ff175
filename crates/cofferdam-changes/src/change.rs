//! Model of a change set.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::fingerprint::{Base, FileKind};

/// Kind of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A new file.
    Added,
    /// New contents, or a new target of a link.
    Modified,
    /// A deleted file, or a directory deleted with everything in it.
    Deleted,
    /// The same contents with other permissions.
    ModeChanged,
    /// A file of another type.
    TypeChanged,
    /// A new file with the contents of a deleted one. The deletion is a change of its own.
    Renamed {
        /// Path of the deleted file.
        from: PathBuf,
    },
}

impl Kind {
    /// Returns the name in documents.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
            Self::ModeChanged => "mode_changed",
            Self::TypeChanged => "type_changed",
            Self::Renamed { .. } => "renamed",
        }
    }
}

/// File at a path after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// Size in bytes.
        size: u64,
        /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
        mode: u32,
        /// Position of the contents in the change set.
        offset: u64,
    },
    /// A directory.
    Directory {
        /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
        mode: u32,
    },
    /// A symbolic link.
    Symlink {
        /// Target of the link, as the guest wrote it.
        target: OsString,
    },
}

impl Node {
    /// Returns the type of the file.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self {
            Self::File { .. } => FileKind::File,
            Self::Directory { .. } => FileKind::Directory,
            Self::Symlink { .. } => FileKind::Symlink,
        }
    }

    /// Returns the permissions. A link has none of its own.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        match self {
            Self::File { mode, .. } | Self::Directory { mode } => Some(*mode),
            Self::Symlink { .. } => None,
        }
    }
}

/// Change of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Kind of the change.
    pub kind: Kind,
    /// File after the change. `None` for a deletion.
    pub node: Option<Node>,
    /// Replaced or deleted file of the workspace. `None` if there was none.
    pub base: Option<Base>,
}

impl Change {
    pub(crate) fn new(path: PathBuf, node: Option<Node>, base: Option<Base>) -> Self {
        let kind = match (&node, &base) {
            (None, _) => Kind::Deleted,
            (Some(_), None) => Kind::Added,
            (Some(node), Some(base)) if node.kind() != base.fingerprint.kind => Kind::TypeChanged,
            (Some(Node::Directory { .. }), Some(_)) => Kind::ModeChanged,
            (Some(_), Some(_)) => Kind::Modified,
        };
        Self { path, kind, node, base }
    }

    /// Returns the size of the contents.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self.node {
            Some(Node::File { size, .. }) => size,
            _ => 0,
        }
    }
}

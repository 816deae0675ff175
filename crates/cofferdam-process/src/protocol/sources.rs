//! The sources of a sandbox's files: its root, its workspace and its mounts.

use std::path::PathBuf;

use cofferdam_contract::MountAccess;
use serde::Serialize;

/// A place in the root at which sandboxes mount a file or a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize)]
pub struct MountPoint {
    /// Its absolute path inside.
    pub target: PathBuf,
    /// True for a directory, false for a regular file.
    pub is_directory: bool,
}

/// The source of a root file system other than the host's programs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum RootPlan {
    /// A host directory.
    Directory(LayerPlan),
    /// The layers of an image, the lowest first.
    Layers(Vec<LayerPlan>),
}

/// A host directory with a root file system, or a layer of one, and its identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub struct LayerPlan {
    /// Its absolute path, links resolved.
    pub path: PathBuf,
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// The source of `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum WorkspacePlan {
    /// A directory of the sandbox's own.
    Private,
    /// A host directory, and its identity.
    HostDir {
        /// Its absolute path, links resolved.
        path: PathBuf,
        /// Its device.
        device: u64,
        /// Its inode.
        inode: u64,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
        /// True if it is never written: a layer of the sandbox's own takes all changes.
        copy_on_write: bool,
    },
}

impl WorkspacePlan {
    /// Returns true if the guest writes to a host directory, unless it is mounted read-only.
    pub fn writes_to_host(&self) -> bool {
        matches!(self, Self::HostDir { copy_on_write: false, .. })
    }

    /// Returns true for a host directory below a layer of the sandbox's own.
    pub fn is_copy_on_write(&self) -> bool {
        matches!(self, Self::HostDir { copy_on_write: true, .. })
    }
}

/// A mount besides the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub struct MountPlan {
    /// Its absolute path inside.
    pub target: PathBuf,
    /// Its files.
    pub source: MountFrom,
}

/// The files of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum MountFrom {
    /// A host directory or file, and its identity.
    Host {
        /// Its absolute path, links resolved.
        path: PathBuf,
        /// Its device.
        device: u64,
        /// Its inode.
        inode: u64,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
        /// True for a directory.
        is_directory: bool,
        /// The guest's access.
        access: MountAccess,
    },
    /// An empty directory in memory of this size in bytes.
    Tmpfs(u64),
    /// An ext4 file system in a file of the host.
    Disk {
        /// The absolute path of the file, links resolved.
        path: PathBuf,
        /// Its device.
        device: u64,
        /// Its inode.
        inode: u64,
        /// Its size in bytes.
        size: u64,
        /// True if every write fails.
        is_read_only: bool,
    },
}

impl MountPlan {
    /// Returns true for a directory, false for a regular file.
    pub fn is_directory(&self) -> bool {
        !matches!(self.source, MountFrom::Host { is_directory: false, .. })
    }

    /// Returns true if every write fails.
    pub fn is_read_only(&self) -> bool {
        matches!(
            self.source,
            MountFrom::Host { access: MountAccess::ReadOnly, .. } | MountFrom::Disk { is_read_only: true, .. }
        )
    }

    /// Returns true if the guest writes to the host's own files.
    pub fn writes_to_host(&self) -> bool {
        matches!(self.source, MountFrom::Host { access: MountAccess::ReadWrite, .. })
    }
}

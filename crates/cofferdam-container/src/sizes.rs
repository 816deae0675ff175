//! Division of the disk limit among the writable directories. Pure.

use cofferdam_contract::{ByteSize, Workspace};

pub(crate) const PAGE: u64 = 4096;

/// The size in bytes of each writable directory; `None` without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectorySizes {
    /// The size of a private workspace.
    pub workspace: Option<u64>,
    /// The size of the layers of copy-on-write directories together. With a private workspace it is a further limit.
    pub layers: Option<u64>,
    pub tmp: Option<u64>,
    pub shm: Option<u64>,
}

impl DirectorySizes {
    /// Divides the disk limit. A private workspace, or the layer of one, gets all of it; `/tmp` and `/dev/shm` have
    /// further limits and count as memory. If the workspace is a host directory, `/tmp` and `/dev/shm` share the limit.
    pub(crate) fn of(disk: Option<ByteSize>, workspace: &Workspace) -> Self {
        let Some(disk) = disk else {
            return Self { workspace: None, layers: None, tmp: None, shm: None };
        };
        let pages = disk.as_bytes() / PAGE;
        let own = !matches!(workspace, Workspace::HostDir { .. });
        let (tmp, shm) = if own { (pages / 4, pages / 16) } else { (pages - pages / 8, pages / 8) };
        let workspace = if own { pages } else { 0 };
        Self {
            workspace: Some(workspace * PAGE),
            layers: Some(pages * PAGE),
            tmp: Some(tmp * PAGE),
            shm: Some(shm * PAGE),
        }
    }
}

/// Returns the maximum number of files, since each takes memory at any size.
pub(crate) fn max_files(bytes: u64) -> u64 {
    (bytes / PAGE).clamp(64, 1 << 20)
}

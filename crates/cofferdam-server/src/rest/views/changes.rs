//! The documents of copy-on-write workspaces and their changes.

use std::path::PathBuf;

use cofferdam_changes::Document;
use cofferdam_changes::sandbox::KeptChanges;
use cofferdam_contract::DirectoryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A directory of the server's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostDirectory {
    /// The absolute path.
    pub path: PathBuf,
    /// The identity of the directory. Another one at this path is refused. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<DirectoryId>,
}

/// The changes of a copy-on-write workspace. The guest chooses the names in its paths.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ChangesReport {
    /// The changes, compared with the directory as it is now.
    #[serde(flatten)]
    pub changes: Document,
    /// Paths of the first changed files that are missing in the changes, such as devices, with the reason.
    pub skipped: Vec<String>,
    /// The number of such files.
    pub skipped_count: usize,
}

/// The end of a sandbox with a copy-on-write workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeletedSandbox {
    /// The changes that were kept for the server's user.
    pub changes: KeptChanges,
}

//! The documents of copy-on-write workspaces and their changes.

use std::path::{Path, PathBuf};

use cofferdam_changes::sandbox::KeptChanges;
use cofferdam_changes::{Applied, Conflict, Document};
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
    /// The digest of the changes, for a request to apply them.
    pub digest: String,
}

/// Changes to apply.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyChanges {
    /// The digest of the changes that were reviewed.
    pub digest: String,
    /// Patterns of paths to apply, as of `cofferdam changes apply --only`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Patterns of files to apply although other programs run them by themselves, such as `.envrc`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// True reports what would be applied, and writes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The result of an application. The guest chooses the names in its paths.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AppliedChanges {
    /// The paths of applied changes.
    pub applied: Vec<String>,
    /// Changes of files that the host changed, too. Nothing was overwritten.
    pub conflicts: Vec<UnappliedChange>,
    /// Changes that are never applied, or only if they are allowed.
    pub refused: Vec<UnappliedChange>,
    /// The change at which an error ended the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<UnappliedChange>,
}

/// A change that was not applied.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct UnappliedChange {
    /// The path.
    pub path: String,
    /// The reason.
    pub reason: String,
    /// The path at which the guest's version is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_as: Option<String>,
}

impl AppliedChanges {
    pub(in crate::rest) fn of(applied: &Applied) -> Self {
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        let left = |path: &Path, reason: String| UnappliedChange { path: shown(path), reason, kept_as: None };
        let conflict = |conflict: &Conflict| UnappliedChange {
            kept_as: conflict.kept_as.as_deref().map(shown),
            ..left(&conflict.path, conflict.cause.to_string())
        };
        Self {
            applied: applied.applied.iter().map(|path| shown(path)).collect(),
            conflicts: applied.conflicts.iter().map(conflict).collect(),
            refused: applied.refused.iter().map(|one| left(&one.path, one.reason.to_string())).collect(),
            error: applied.failed.as_ref().map(|(path, error)| left(path, error.to_string())),
        }
    }
}

/// The end of a sandbox with a copy-on-write workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeletedSandbox {
    /// The changes that were kept for the server's user.
    pub changes: KeptChanges,
}

//! A review of a change set as data with stable names.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Kind, Node};
use crate::diff::{Body, Detail, MAX_TEXT, Review};
use crate::error::Result;
use crate::fingerprint::FileKind;
use crate::read::ChangeSet;
use crate::render::{Stat, is_half_of_rename, renamed};
use crate::resolve::resolve;

/// A review of a change set.
///
/// A path that is not UTF-8 has U+FFFD in place of the invalid bytes. The field with the ending `_base64` then has its
/// exact bytes, and is absent otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "sandbox", derive(schemars::JsonSchema))]
pub struct Document {
    /// Path of the workspace on the host.
    pub workspace: String,
    /// Time at which the sandbox began, in nanoseconds since the epoch.
    pub started_ns: i64,
    /// Changes in the order of paths. A renamed file is one change.
    pub changes: Vec<DocumentChange>,
    /// Numbers of changed files and lines.
    pub summary: Stat,
}

/// Change of one path in a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "sandbox", derive(schemars::JsonSchema))]
pub struct DocumentChange {
    /// Path relative to the workspace.
    pub path: String,
    /// Exact path, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// `added`, `modified`, `deleted`, `mode_changed`, `type_changed` or `renamed`.
    pub kind: String,
    /// `file`, `directory` or `symlink`: the type after the change. The type before it, for a deletion.
    #[serde(rename = "type")]
    pub file_type: String,
    /// Size of a file after the change, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Number of files below a directory that is deleted or replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_files: Option<u64>,
    /// Permissions after the change, in octal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Previous path of a renamed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Exact previous path, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_base64: Option<String>,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Exact target, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<String>,
    /// Number of inserted lines, if the lines were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertions: Option<usize>,
    /// Number of deleted lines, if the lines were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<usize>,
    /// True if one of the versions is not text.
    pub binary: bool,
    /// Reason of a conflict with the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// Reason why the change needs a permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarded: Option<String>,
    /// True if the workspace has the change already. Not a part of the serialized form.
    #[serde(skip)]
    pub is_applied: bool,
}

/// Returns a review of a change set, compared with the workspace as it is now.
///
/// # Errors
///
/// Those of the operating system.
pub fn document(set: &ChangeSet, directory: BorrowedFd<'_>) -> Result<Document> {
    let mut review = Review::new(set, directory, MAX_TEXT)?;
    let (mut summary, mut entries) = (Stat::default(), Vec::new());
    let changes = resolve(set, directory)?;
    let renamed = renamed(&changes);
    for change in changes.iter().filter(|change| !is_half_of_rename(change, &renamed)) {
        let detail = review.detail(change)?;
        summary.add(&detail);
        entries.push(entry(change, &detail));
    }
    let header = set.header();
    let (workspace, _) = encoded(header.workspace.as_os_str().as_bytes());
    Ok(Document { workspace, started_ns: header.started, changes: entries, summary })
}

fn entry(change: &Change, detail: &Detail) -> DocumentChange {
    let (path, path_base64) = path(&change.path);
    let (from, from_base64) = match &change.kind {
        Kind::Renamed { from } => some(from.as_os_str().as_bytes()),
        _ => (None, None),
    };
    let (target, target_base64) = match &change.node {
        Some(Node::Symlink { target }) => some(target.as_bytes()),
        _ => (None, None),
    };
    let lines = match &detail.body {
        Body::Text(lines) => Some(lines.counts()),
        _ => None,
    };
    let base = change.base.as_ref().map(|base| base.fingerprint.kind);
    let kind = change.node.as_ref().map(Node::kind).or(base).unwrap_or(FileKind::Other);
    DocumentChange {
        path,
        path_base64,
        kind: change.kind.name().to_owned(),
        file_type: kind.name().to_owned(),
        size: matches!(change.node, Some(Node::File { .. })).then(|| change.size()),
        deleted_files: change.base.as_ref().and_then(|base| base.tree.as_ref()).map(|tree| tree.files),
        mode: change.node.as_ref().and_then(Node::mode).map(|mode| format!("{mode:04o}")),
        from,
        from_base64,
        target,
        target_base64,
        insertions: lines.map(|(insertions, _)| insertions),
        deletions: lines.map(|(_, deletions)| deletions),
        binary: matches!(detail.body, Body::Binary(..)),
        conflict: detail.conflict.map(|cause| cause.name().to_owned()),
        guarded: detail.guarded.map(str::to_owned),
        is_applied: detail.is_applied,
    }
}

fn path(path: &Path) -> (String, Option<String>) {
    encoded(path.as_os_str().as_bytes())
}

fn some(bytes: &[u8]) -> (Option<String>, Option<String>) {
    let (text, exact) = encoded(bytes);
    (Some(text), exact)
}

/// Returns bytes as text, and exactly if they are not UTF-8.
fn encoded(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(STANDARD.encode(bytes))),
    }
}

//! Detection of changes on the host since the capture. The module is pure.

use std::fmt;
use std::path::PathBuf;

use rustix::fs::Stat;

use crate::change::{Change, Node};
use crate::fingerprint::{FileKind, Fingerprint};

/// Reason of a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The file of the workspace was changed or replaced since the capture.
    Changed,
    /// The file of the workspace was removed since the capture.
    Removed,
    /// The workspace has a file now where it had none.
    Appeared,
    /// The file of the workspace was changed on the host while the sandbox ran.
    ChangedDuringRun,
    /// A directory above the file is missing, or is no directory any more.
    ParentMissing,
}

impl Cause {
    /// Returns the name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Appeared => "appeared",
            Self::ChangedDuringRun => "changed_during_run",
            Self::ParentMissing => "parent_missing",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "the host changed the file after the capture",
            Self::Removed => "the host removed the file after the capture",
            Self::Appeared => "the host has a new file at this path",
            Self::ChangedDuringRun => "the host changed the file while the sandbox ran",
            Self::ParentMissing => "a directory above the file is missing on the host",
        })
    }
}

/// A change that the workspace does not allow any more. The file of the host stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Reason.
    pub cause: Cause,
    /// Path to which the guest's version was written, beside the file of the host.
    pub kept_as: Option<PathBuf>,
}

/// Compares a file of the workspace with what a change expects.
pub(crate) fn compare(change: &Change, now: Option<&Stat>, started: i64) -> Option<Cause> {
    let now = now.map(Fingerprint::of);
    let base = change.base.as_ref().map(|base| base.fingerprint);
    let (base, now) = match (base, now) {
        (None, None) => return None,
        // Both sides created the directory, which may have contents of both.
        (None, Some(now)) if now.kind == FileKind::Directory && is_directory(change) => return None,
        (None, Some(_)) => return Some(Cause::Appeared),
        // Both sides deleted the file.
        (Some(_), None) => return change.node.is_some().then_some(Cause::Removed),
        (Some(base), Some(now)) => (base, now),
    };
    if !base.matches(&now) {
        return Some(Cause::Changed);
    }
    // The time of a directory changes with its entries, which have times of their own.
    let during = base.kind != FileKind::Directory && base.ctime >= started;
    during.then_some(Cause::ChangedDuringRun)
}

fn is_directory(change: &Change) -> bool {
    matches!(change.node, Some(Node::Directory { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Base;

    #[test]
    fn every_difference_is_a_conflict() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let stat = rustix::fs::fstat(temp.as_file()).unwrap();
        let fingerprint = Fingerprint::of(&stat);
        let file = Some(Node::File { size: 0, mode: 0o644, offset: 0 });
        let check = |node: &Option<Node>, base: Option<Fingerprint>, now, started| {
            let base = base.map(|fingerprint| Base { fingerprint, tree: None });
            compare(&Change::new("f".into(), node.clone(), base), now, started)
        };
        let later = fingerprint.ctime + 1;
        assert_eq!(check(&file, None, None, later), None);
        assert_eq!(check(&file, None, Some(&stat), later), Some(Cause::Appeared));
        assert_eq!(check(&file, Some(fingerprint), None, later), Some(Cause::Removed));
        assert_eq!(check(&None, Some(fingerprint), None, later), None);
        assert_eq!(check(&file, Some(fingerprint), Some(&stat), later), None);
        assert_eq!(check(&file, Some(fingerprint), Some(&stat), fingerprint.ctime), Some(Cause::ChangedDuringRun));
        for other in [
            Fingerprint { size: 1, ..fingerprint },
            Fingerprint { mtime: 1, ..fingerprint },
            Fingerprint { ctime: 1, ..fingerprint },
            Fingerprint { inode: 1, ..fingerprint },
            Fingerprint { mode: 0, ..fingerprint },
            Fingerprint { kind: FileKind::Directory, ..fingerprint },
        ] {
            assert_eq!(check(&file, Some(other), Some(&stat), later), Some(Cause::Changed), "{other:?}");
        }
    }
}

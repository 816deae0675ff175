//! Copies of files into and out of a workspace, as streams of tar.
//!
//! Both directions work on any sandbox with a file API: [`copy_in`] verifies the entries of an untrusted archive and
//! puts them one by one, [`copy_out`] walks the workspace. Paths that lead out are refused or not followed, counts and
//! sizes are bounded, and what has no place in a copy is reported.

mod incoming;
mod outgoing;
mod pattern;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use incoming::copy_in;
pub(crate) use outgoing::copy_out;
pub use pattern::CopyPattern;

use crate::{ByteSize, SandboxPath};

/// The default for the maximum number of entries of a copy out of a workspace.
pub const MAX_COPIED_ENTRIES: u64 = 200_000;
/// The default for the maximum size of all files of a copy out of a workspace.
pub const MAX_COPIED_BYTES: ByteSize = ByteSize::from_mebibytes(1024);
/// The maximum number of skipped files that a report lists. The rest is counted.
pub const MAX_SKIPPED_LISTED: usize = 100;

/// A selection of files of a workspace, and the bounds of their copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOut {
    /// The directory to which patterns and the paths in the archive are relative.
    pub from: SandboxPath,
    /// The files and directories. A directory is copied with everything in it. Everything, if there is no pattern.
    pub patterns: Vec<CopyPattern>,
    /// The maximum number of entries.
    pub max_entries: u64,
    /// The maximum size of all files.
    pub max_bytes: ByteSize,
}

impl CopyOut {
    /// Selects everything below a directory, with the default bounds.
    pub fn all(from: SandboxPath) -> Self {
        Self { from, patterns: Vec::new(), max_entries: MAX_COPIED_ENTRIES, max_bytes: MAX_COPIED_BYTES }
    }

    /// Selects what a path with wildcards names, such as `out/*.png`, with the default bounds. The archive contains the
    /// path from the first wildcard on, or only its last component.
    ///
    /// # Errors
    /// - Those of [`SandboxPath::new`].
    /// - `InvalidInput` for a malformed pattern.
    pub fn named(path: &str) -> crate::Result<Self> {
        let (from, pattern) = CopyPattern::below_parent(path)?;
        Ok(Self { patterns: pattern.into_iter().collect(), ..Self::all(from) })
    }
}

/// The result of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CopyReport {
    /// The number of copied files, directories and symlinks.
    pub entries: u64,
    /// The size of all copied files.
    pub bytes: u64,
    /// The first files that were skipped or changed, at most [`MAX_SKIPPED_LISTED`].
    pub skipped: Vec<SkippedFile>,
    /// The number of such files.
    pub skipped_count: u64,
    /// The patterns that matched nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
}

impl CopyReport {
    fn skip(&mut self, path: &str, reason: CopySkipped) {
        self.skipped_count += 1;
        if self.skipped.len() < MAX_SKIPPED_LISTED {
            self.skipped.push(SkippedFile { path: path.escape_debug().to_string(), reason });
        }
    }
}

/// A file that was skipped or changed by a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedFile {
    /// The path, with control characters escaped.
    pub path: String,
    /// The reason.
    pub reason: CopySkipped,
}

impl fmt::Display for SkippedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// The reason why a copy skipped or changed a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CopySkipped {
    /// It is a device, fifo or socket.
    NotAFile,
    /// It is a hard link in an archive.
    HardLink,
    /// Its name or target is not UTF-8.
    NotText,
    /// Its name has the form of a deletion in an image layer.
    Reserved,
    /// Its path is too long, or it is nested too deeply.
    TooDeep,
    /// The file system refused access, or it was removed meanwhile.
    Unreadable,
    /// It changed while it was copied. Its contents are incomplete.
    ChangedMeanwhile,
    /// It was copied without its set-user-ID and set-group-ID bits.
    SetId,
}

impl fmt::Display for CopySkipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAFile => "devices, fifos and sockets are not copied",
            Self::HardLink => "hard links of an archive are not copied",
            Self::NotText => "names that are not UTF-8 are not copied",
            Self::Reserved => "names that begin with .wh. are reserved for deletions in layers",
            Self::TooDeep => "the path is too long or too deep",
            Self::Unreadable => "the file cannot be read",
            Self::ChangedMeanwhile => "the file changed while it was copied, its contents are incomplete",
            Self::SetId => "copied without its set-user-ID and set-group-ID bits",
        })
    }
}

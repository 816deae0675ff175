//! The documents of copies and of watched files.

use cofferdam_contract::CopyReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The report of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Copied {
    /// The report.
    #[serde(flatten)]
    pub report: CopyReport,
}

/// An event of a watched directory. The guest chooses the names in its paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum FileEvent {
    /// A file, link or directory has appeared. It may have replaced a file.
    Created {
        /// The path inside the sandbox.
        path: String,
    },
    /// Contents or attributes have changed.
    Changed {
        /// The path inside the sandbox.
        path: String,
    },
    /// A file, link or directory has disappeared, with all beneath it.
    Removed {
        /// The path inside the sandbox.
        path: String,
    },
    /// A file, link or directory has moved, with all beneath it.
    Renamed {
        /// The former path.
        from: String,
        /// The new path.
        to: String,
    },
    /// Events were lost: list the directory again.
    Overflow,
}

/// The names of a file to move.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// The path of the file, symlink or directory, relative to the workspace or below `/workspace`.
    pub from: String,
    /// Its new path. The directory above must exist. A file there is replaced, and an empty directory by a directory.
    pub to: String,
}

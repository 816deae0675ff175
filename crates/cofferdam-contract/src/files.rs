//! Paths and files of a workspace in the file API.

use std::borrow::Borrow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use crate::{Error, ErrorKind, Result, WORKSPACE_PATH};

/// A stream of a file's bytes. The file is never held in memory as a whole.
pub type FileReader = Box<dyn AsyncRead + Send + Unpin>;

/// A path relative to the workspace, without `..` and empty components. The empty path is the workspace itself.
///
/// A valid path may still contain symlinks, which the guest controls. Backends resolve them so that none leads outside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SandboxPath(String);

impl SandboxPath {
    /// Parses a path such as `a/b`, `./a/b` or `/workspace/a/b`.
    ///
    /// # Errors
    /// - `PathEscape` for a path that contains `..` or is absolute and outside the workspace.
    /// - `InvalidInput` for a NUL byte, a path of more than 4096 bytes, or a component of more than 255 bytes.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let bad = |kind, message: &str| {
            Err(Error::new(kind, "path", message).with_context("path", text.escape_debug().to_string()))
        };
        if text.len() > 4096 || text.contains('\0') {
            return bad(ErrorKind::InvalidInput, "a path must be at most 4096 bytes and contain no NUL byte");
        }
        let relative = match text.strip_prefix(WORKSPACE_PATH) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
            _ if text.starts_with('/') => return bad(ErrorKind::PathEscape, "the path is outside the workspace"),
            _ => text,
        };
        let mut parts = Vec::new();
        for part in relative.split('/') {
            match part {
                "" | "." => {}
                ".." => return bad(ErrorKind::PathEscape, "'..' is not allowed in a workspace path"),
                part if part.len() > 255 => {
                    return bad(ErrorKind::InvalidInput, "a path component must be at most 255 bytes");
                }
                part => parts.push(part),
            }
        }
        Ok(Self(parts.join("/")))
    }

    /// Returns true for a path in the directory `other`, at any depth.
    pub fn is_beneath(&self, other: &Self) -> bool {
        match self.0.strip_prefix(&other.0) {
            Some(rest) if other.is_workspace() => !rest.is_empty(),
            Some(rest) => rest.starts_with('/'),
            None => false,
        }
    }

    /// Returns the path relative to the workspace. Empty for the workspace itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of `relative` below this one.
    ///
    /// # Errors
    /// - Those of [`Self::new`], also for an absolute path.
    pub fn join(&self, relative: &str) -> Result<Self> {
        if relative.starts_with('/') {
            return Err(Error::new(ErrorKind::PathEscape, "path", "the path is not relative")
                .with_context("path", relative.escape_debug().to_string()));
        }
        Self::new(format!("./{}/{relative}", self.0))
    }

    /// Returns true if this is the workspace itself.
    pub fn is_workspace(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the absolute path inside the sandbox, such as `/workspace/a/b`.
    pub fn inside(&self) -> String {
        if self.0.is_empty() { WORKSPACE_PATH.to_owned() } else { format!("{WORKSPACE_PATH}/{}", self.0) }
    }
}

impl TryFrom<String> for SandboxPath {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<SandboxPath> for String {
    fn from(path: SandboxPath) -> Self {
        path.0
    }
}

impl Borrow<str> for SandboxPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inside().escape_debug())
    }
}

/// The type of a directory entry. Symlinks are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A fifo, socket or device.
    Other,
}

/// An entry of a directory. The guest chooses the name: treat it as untrusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirEntry {
    /// The entry's name. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub name: String,
    /// The entry's type.
    pub kind: EntryKind,
    /// The size of a regular file in bytes; 0 for other types.
    pub size: u64,
    /// Permissions, with the set-user-ID, set-group-ID and sticky bits. 0o777 for a symlink.
    pub mode: u32,
    /// The time of the last change of the contents, in seconds since 1970.
    pub modified: i64,
    /// The target of a symlink, which may lead anywhere. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// A file, directory or symlink that [`crate::Sandbox::put`] creates.
pub enum NewEntry {
    /// A regular file.
    File {
        /// Permissions. Set-user-ID and set-group-ID bits are ignored.
        mode: u32,
        /// The time of the last change, in seconds since 1970.
        modified: i64,
        /// The contents.
        contents: FileReader,
    },
    /// A directory.
    Directory {
        /// Permissions. Set-user-ID and set-group-ID bits are ignored.
        mode: u32,
    },
    /// A symlink.
    Symlink {
        /// The target, which may be any text without a NUL byte.
        target: String,
    },
}

/// The bits of a mode that copies keep: permissions and the sticky bit.
pub const COPIED_MODE: u32 = 0o1777;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_stay_inside() {
        for (text, inside) in [("a/b", "a/b"), ("./a//b/", "a/b"), ("/workspace/x", "x"), ("/workspace", ""), ("", "")]
        {
            assert_eq!(SandboxPath::new(text).unwrap().as_str(), inside, "{text}");
        }
        for text in ["..", "a/../b", "/etc/passwd", "/workspacex", "/workspace/../etc", "a\0b"] {
            assert!(SandboxPath::new(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_has_only_plain_parts(text in "[a./\\x00\u{e9}]{0,20}") {
            if let Ok(path) = SandboxPath::new(&text) {
                prop_assert!(!path.as_str().starts_with('/'));
                prop_assert!(path.is_workspace() || path.as_str().split('/').all(|part| !matches!(part, "" | "." | "..")));
                prop_assert_eq!(SandboxPath::new(path.as_str()).unwrap(), path);
            }
        }
    }
}

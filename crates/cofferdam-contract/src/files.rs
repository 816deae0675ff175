//! Paths and files of a workspace, as the file API names them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use crate::{Error, ErrorKind, Result, WORKSPACE_PATH};

/// A file's bytes as they are read; nothing is held whole.
pub type FileReader = Box<dyn AsyncRead + Send + Unpin>;

/// A path inside the workspace, relative to it, without `..` and empty parts. The empty path is the workspace itself.
///
/// It says nothing about symlinks: those are the guest's, and a backend resolves them so that none leads outside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SandboxPath(String);

impl SandboxPath {
    /// Parses `a/b`, `./a/b` or `/workspace/a/b`. Anything with `..`, NUL, or outside the workspace is refused.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let bad = |kind, message: &str| {
            Err(Error::new(kind, "path", message).with_context("path", text.escape_debug().to_string()))
        };
        if text.len() > 4096 || text.contains('\0') {
            return bad(ErrorKind::InvalidInput, "a path is at most 4096 bytes without NUL");
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
                part if part.len() > 255 => return bad(ErrorKind::InvalidInput, "a name is at most 255 bytes"),
                part => parts.push(part),
            }
        }
        Ok(Self(parts.join("/")))
    }

    /// The path relative to the workspace; empty for the workspace itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the workspace itself.
    pub fn is_workspace(&self) -> bool {
        self.0.is_empty()
    }

    /// The path as code inside sees it.
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

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inside().escape_debug())
    }
}

/// What a directory entry is. Links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A fifo, socket or device.
    Other,
}

/// One entry of a directory. The name is chosen by the guest: treat it as hostile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirEntry {
    /// The entry's name; bytes that are not UTF-8 are replaced by U+FFFD.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
    /// The length of a plain file in bytes, else 0.
    pub size: u64,
}

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

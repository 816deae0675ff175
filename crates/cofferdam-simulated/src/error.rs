//! Conversion of the tree's errors to the contract's.

use cofferdam_contract::{Error, ErrorKind};

use crate::tree::TreeError;

impl TreeError {
    /// Returns the message that a guest prints.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::NotFound => "no such file or directory",
            Self::Escape => "the path leads outside the workspace",
            Self::NotADirectory => "not a directory",
            Self::IsADirectory => "is a directory",
            Self::NotAFile => "not a plain file",
            Self::Exists => "exists already",
            Self::TooManyLinks => "too many symbolic links",
            Self::Full => "no space left: the disk limit is reached",
            Self::IsTheWorkspace => "the workspace itself",
            Self::IntoItself => "a directory cannot be moved into itself",
        }
    }

    /// Returns the error for a caller of the file API.
    pub(crate) fn into_error(self, operation: &'static str, path: &str) -> Error {
        let kind = match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Escape => ErrorKind::PathEscape,
            Self::NotADirectory | Self::IsADirectory | Self::NotAFile | Self::Exists | Self::TooManyLinks => {
                ErrorKind::Conflict
            }
            Self::Full => ErrorKind::ResourceExhausted,
            Self::IsTheWorkspace | Self::IntoItself => ErrorKind::InvalidInput,
        };
        Error::new(kind, operation, self.message()).with_context("path", path.escape_debug().to_string())
    }
}

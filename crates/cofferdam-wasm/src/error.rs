//! Conversion of file system errors to the contract's errors.

use cofferdam_contract::{Error, ErrorKind};

use crate::fs::FsError;

impl FsError {
    /// Converts to the error that a caller gets.
    pub(crate) fn into_error(self, operation: &'static str, path: &str) -> Error {
        let kind = match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Escape => ErrorKind::PathEscape,
            Self::NotADirectory | Self::IsADirectory | Self::NotEmpty | Self::Exists | Self::TooManyLinks => {
                ErrorKind::Conflict
            }
            Self::Full | Self::NoMemory | Self::TooManyFiles | Self::TooLarge => ErrorKind::ResourceExhausted,
            Self::NameTooLong | Self::Invalid | Self::NotPermitted => ErrorKind::InvalidInput,
        };
        Error::new(kind, operation, self.to_string()).with_context("path", path.escape_debug().to_string())
    }
}

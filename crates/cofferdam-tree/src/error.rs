//! Errors of file systems and of the tools that create them.

use std::path::PathBuf;

use cofferdam_linux::trust::Distrust;

use super::tool::excerpt;

/// Result with [`TreeError`].
pub(crate) type Result<T, E = TreeError> = std::result::Result<T, E>;

/// An error of file systems and of the tools that create them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A program of the host is missing.
    #[error("{tool} is not installed")]
    MissingTool {
        /// The program.
        tool: &'static str,
    },
    /// A program of the host failed.
    #[error("{tool} failed ({status}): {}", excerpt(output))]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// Its exit status.
        status: String,
        /// Its output.
        output: String,
    },
    /// Another user can change a program or a directory above it.
    #[error("not trusted: {0}")]
    Distrust(#[from] Distrust),
    /// A file system would be larger than allowed.
    #[error("the file system takes {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Bytes of the file system.
        bytes: u64,
        /// Maximum.
        max: u64,
    },
    /// The operating system refused an operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> TreeError {
    let path = path.into();
    move |source| TreeError::Io { operation, path, source }
}

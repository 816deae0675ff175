//! Errors of reading images and of unpacking their layers.

use std::path::PathBuf;

/// Result with [`LayerError`].
pub(crate) type Result<T, E = LayerError> = std::result::Result<T, E>;

/// An error of reading an image or of unpacking its layers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The image is damaged or forbidden.
    #[error("{what}")]
    Invalid {
        /// The problem.
        what: String,
    },
    /// The files of the image are larger than allowed.
    #[error("the image's files take {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Bytes of the files.
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

pub(crate) fn bad(what: impl Into<String>) -> LayerError {
    LayerError::Invalid { what: what.into() }
}

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> LayerError {
    let path = path.into();
    move |source| LayerError::Io { operation, path, source }
}

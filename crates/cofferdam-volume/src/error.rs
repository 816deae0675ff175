//! Errors of volumes.

use std::path::PathBuf;

use cofferdam_linux::loop_device::LoopError;
use cofferdam_tree::TreeError;

/// Result with [`VolumeError`].
pub(crate) type Result<T, E = VolumeError> = std::result::Result<T, E>;

/// An error of volumes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The name of a volume is invalid.
    #[error("'{name}' is not a valid name of a volume: use letters, digits, '.', '_' and '-', at most 64")]
    InvalidName {
        /// The name, in printable form.
        name: String,
    },
    /// The size of a volume is invalid.
    #[error("the size {bytes} is invalid: a volume has between {min} and {max} bytes, a multiple of 4096")]
    InvalidSize {
        /// The size.
        bytes: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// There is no such volume.
    #[error("there is no volume '{name}'")]
    NotFound {
        /// The name.
        name: String,
    },
    /// There is such a volume.
    #[error("the volume '{name}' exists")]
    Exists {
        /// The name.
        name: String,
    },
    /// Another sandbox or command uses the volume.
    #[error("the volume '{name}' is in use by {by}")]
    InUse {
        /// The name.
        name: String,
        /// The users.
        by: String,
    },
    /// The store has the maximum number of volumes.
    #[error("there are {max} volumes already")]
    TooMany {
        /// Maximum.
        max: usize,
    },
    /// Other users can change the store.
    #[error("the directory '{}' cannot be used: {reason}", path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// A volume cannot be read.
    #[error("the volume '{name}' is damaged: {reason}")]
    Damaged {
        /// The name.
        name: String,
        /// The problem.
        reason: String,
    },
    /// The last writer did not close the volume, and its journal can only be read after a writer wrote it.
    #[error("the last writer of the volume '{name}' did not end properly, and its journal must be written first")]
    Unclean {
        /// The name.
        name: String,
    },
    /// An entry of a tar is not accepted.
    #[error("the tar cannot be imported: {entry}: {reason}")]
    Malformed {
        /// The entry, in printable form.
        entry: String,
        /// The reason.
        reason: String,
    },
    /// A tar or a volume is too large.
    #[error("there are more than {max} {what}")]
    TooLarge {
        /// The unit that is exceeded.
        what: &'static str,
        /// Maximum.
        max: u64,
    },
    /// The files do not fit into the volume.
    #[error("the files do not fit into a volume of {size} bytes")]
    DoesNotFit {
        /// Size of the volume.
        size: u64,
    },
    /// The reader or writer of the tar failed.
    #[error("cannot {operation} the tar: {source}")]
    Stream {
        /// The operation.
        operation: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// The file system cannot be mounted.
    #[error("cannot mount the volume '{name}': {source}")]
    Mount {
        /// The name.
        name: String,
        /// The reason.
        source: LoopError,
    },
    /// A file system could not be created.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The operating system refused an operation.
    #[error("cannot {operation} '{}': {source}", path.display())]
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
pub(crate) fn io<E: Into<std::io::Error>>(
    operation: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> VolumeError {
    let path = path.into();
    move |source| VolumeError::Io { operation, path, source: source.into() }
}

/// Converts an exceeded limit.
pub(crate) fn too_large((what, max): (&'static str, u64)) -> VolumeError {
    VolumeError::TooLarge { what, max }
}

/// Returns untrusted bytes in a printable form.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MAX: usize = 200;
    let cut = if bytes.len() > MAX { "…" } else { "" };
    format!("'{}{cut}'", String::from_utf8_lossy(&bytes[..bytes.len().min(MAX)]).escape_debug())
}

//! Errors of the installation of interpreters, each with its remedy.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_linux::trust::Distrust;

/// Result with [`RuntimesError`].
pub type Result<T, E = RuntimesError> = std::result::Result<T, E>;

/// An error of the installation of an interpreter. None of them leaves an entry in the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimesError {
    /// A program that fetches packages is not installed.
    #[error("cannot {what}: {tool} is not installed; {remedy}")]
    MissingTool {
        /// The program.
        tool: &'static str,
        /// The task of the program.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// A program that another user could have changed. It was not started.
    #[error("cannot start {tool}: {distrust}; {}", distrust.remedy())]
    UntrustedTool {
        /// The program.
        tool: &'static str,
        /// The reason.
        distrust: Distrust,
    },
    /// A program ended with a failure, mostly because the registry cannot be reached.
    #[error(
        "{tool} could not {what} ({status}; {output}); if a registry could not be reached, try again once it can be"
    )]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// The task of the program.
        what: &'static str,
        /// Its exit status.
        status: String,
        /// The end of its output.
        output: String,
    },
    /// A program did not finish in time and was killed.
    #[error("{tool} did not {what} within {limit:?} and was killed; try again with a faster connection")]
    TooSlow {
        /// The program.
        tool: &'static str,
        /// The task of the program.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// Fetched content that differs from the pinned content. It was not used.
    #[error(
        "{what} has the SHA-256 {found}, not {expected}: it was changed or damaged in transit, and was not used. \
         Try again; if the error stays, do not trust the registry or mirror that it came from"
    )]
    WrongHash {
        /// The file.
        what: String,
        /// The pinned hash.
        expected: String,
        /// The hash of the fetched content.
        found: String,
    },
    /// An archive that is truncated or has a forbidden entry.
    #[error("cannot unpack the archive {archive}: {reason}")]
    BadArchive {
        /// The archive.
        archive: String,
        /// The reason.
        reason: String,
    },
    /// No compiler is pinned for the architecture and system of this host.
    #[error("no compiler is pinned for {host}: copy the cache from a host that has a pinned compiler")]
    UnsupportedHost {
        /// Architecture and system.
        host: String,
    },
    /// A cache that another user could have changed.
    #[error("the cache {} cannot be trusted: {reason}", path.display())]
    UntrustedCache {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The disk is full or the quota is exhausted.
    #[error("no space left for {}: the build of JavaScript needs about 700 MB and keeps 50 MB", path.display())]
    NoSpace {
        /// The path that was written.
        path: PathBuf,
    },
    /// An operating system call failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl RuntimesError {
    /// Returns true if the error proves that a cache entry is damaged or foreign. Any other error can occur for an
    /// intact entry too, for instance when descriptors, memory or space are exhausted.
    pub(crate) fn shows_damage(&self) -> bool {
        use std::io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound};
        match self {
            Self::WrongHash { .. } | Self::UntrustedCache { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), NotFound | NotADirectory | IsADirectory | InvalidData)
            }
            _ => false,
        }
    }
}

/// Returns a function that converts an operating system error: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> RuntimesError {
    let path = path.into();
    move |source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => RuntimesError::NoSpace { path },
        _ => RuntimesError::Io { operation, path, source },
    }
}

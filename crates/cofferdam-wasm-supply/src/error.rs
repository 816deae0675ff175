//! What can go wrong when interpreters are obtained, each with what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_linux::trust::Distrust;

/// Result with [`SupplyError`].
pub type Result<T, E = SupplyError> = std::result::Result<T, E>;

/// Why an interpreter could not be had. Nothing is left in the cache after any of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SupplyError {
    /// A program that fetches packages is not installed.
    #[error("{tool} is not installed, which has to {what}: {remedy}")]
    MissingTool {
        /// The program.
        tool: &'static str,
        /// What it was to do.
        what: &'static str,
        /// How to get it.
        remedy: &'static str,
    },
    /// A program that another user could change. It was not started.
    #[error("{tool} was not started: {distrust}; {}", distrust.remedy())]
    UntrustedTool {
        /// The program.
        tool: &'static str,
        /// Why.
        distrust: Distrust,
    },
    /// A program ended with a failure, mostly because the registry cannot be reached.
    #[error(
        "{tool} could not {what} ({status}; {output}): if a registry could not be reached, try again once it can be"
    )]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// What it was to do.
        what: &'static str,
        /// Its exit status.
        status: String,
        /// The end of what it wrote.
        output: String,
    },
    /// A program took too long and was killed.
    #[error("{tool} did not {what} within {limit:?} and was stopped; try again with a faster connection")]
    TooSlow {
        /// The program.
        tool: &'static str,
        /// What it was to do.
        what: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// What came is not what is pinned. It was not used.
    #[error(
        "{what} has the SHA-256 {found}, not {expected}: it was changed or damaged on its way, and was not used. \
         Try again; if it stays so, do not trust the registry or mirror that it came from"
    )]
    WrongHash {
        /// The file.
        what: String,
        /// The pinned hash.
        expected: String,
        /// The hash of what came.
        found: String,
    },
    /// An archive is cut off, or holds what it must not.
    #[error("the archive {archive} was refused: {reason}")]
    BadArchive {
        /// The archive.
        archive: String,
        /// Why.
        reason: String,
    },
    /// This machine's kind has no compiler among the pinned ones.
    #[error("there is no pinned compiler for {host}: copy the cache from a machine that has one")]
    UnsupportedHost {
        /// Architecture and system.
        host: String,
    },
    /// The cache is not this user's alone.
    #[error("the cache {} cannot be trusted: {reason}", path.display())]
    UntrustedCache {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The disk is full or the quota used up.
    #[error("no space left for {}: about 700 MB are needed while JavaScript is built, 50 MB are kept", path.display())]
    NoSpace {
        /// What was written.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Makes an error of the operating system into one of ours: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> SupplyError {
    let path = path.into();
    move |source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => SupplyError::NoSpace { path },
        _ => SupplyError::Io { operation, path, source },
    }
}

//! Errors of the crate, each with its remedy.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_linux::trust::Distrust;

/// Result with [`DebianError`].
pub type Result<T, E = DebianError> = std::result::Result<T, E>;

/// An error from building a root file system. The cache is intact after any of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DebianError {
    /// apt or dpkg is missing: the host is not Debian, Ubuntu or a derivative.
    #[error(
        "{tool} is not installed, and is needed to get packages. On a host that is not Debian or Ubuntu, create a root \
         directory or tar by other means and use `cofferdam image import`"
    )]
    MissingTool {
        /// The missing program.
        tool: &'static str,
    },
    /// Another user could change the program, so it was not started.
    #[error("{tool} was not started: {distrust}\n{}", distrust.remedy())]
    UntrustedTool {
        /// The program.
        tool: &'static str,
        /// The reason.
        distrust: Distrust,
    },
    /// The text is not a valid package name.
    #[error(
        "'{name}' is not a Debian package name: use lower-case letters, digits, '+', '-' and '.', then an optional `=VERSION`"
    )]
    InvalidName {
        /// The name.
        name: String,
    },
    /// No archive can be reached, and no package lists are recent enough.
    #[error(
        "cannot reach any package archive: {reason}\nIs there a network, does it need a proxy (http_proxy, or \
         Acquire::http::Proxy in apt's configuration)? Try again once `apt-get update` works, or use `cofferdam image import`"
    )]
    NoArchive {
        /// apt's message.
        reason: String,
    },
    /// A signature or a hash of package lists is wrong.
    #[error(
        "the package lists are not trusted and were not used: {reason}\nMake `apt-get update` work on this host first: \
         its sources and keyrings are the ones used here"
    )]
    UntrustedArchive {
        /// apt's message.
        reason: String,
    },
    /// The archive lacks a package, or the packages conflict.
    #[error(
        "cannot resolve the packages: {reason}\nCheck that the host's sources offer them (`apt-cache policy NAME`)"
    )]
    Unresolvable {
        /// apt's message.
        reason: String,
    },
    /// A download failed. The packages that arrived are kept.
    #[error(
        "cannot download packages: {reason}\nTry again: the packages that arrived are in the cache. If a package is not found \
         any more, the archive has a newer version: resolve again"
    )]
    FetchFailed {
        /// apt's message.
        reason: String,
    },
    /// No data arrived within the time limit.
    #[error("{what} received no data for {limit:?} and was stopped; try again with a better connection")]
    Stalled {
        /// The program that was stopped.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// apt's output has an unknown format.
    #[error("cannot parse apt's output: '{line}'; please report it with the version of apt")]
    StrangeAnswer {
        /// A line of the output.
        line: String,
    },
    /// A download does not match the archive's signed lists. It was not used.
    #[error(
        "package {package} has the SHA-256 {found}, expected {expected}: it was changed or damaged, and was not used. Try \
         again; if the error persists, do not trust the mirror"
    )]
    WrongHash {
        /// The package or its file.
        package: String,
        /// The signed hash.
        expected: String,
        /// The hash of the download.
        found: String,
    },
    /// A package has forbidden content, or is not a package.
    #[error("package {package} was refused: {reason}")]
    BadPackage {
        /// The package.
        package: String,
        /// The reason.
        reason: String,
    },
    /// Other users can write to the cache, or apt does not support its path.
    #[error("cannot use the cache {}: {reason}", path.display())]
    BadCache {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another process holds the lock of the cache.
    #[error("another process has used {} for {limit:?}; stop it, or use another cache", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// The disk is full or the quota is exhausted.
    #[error("no space left for {}: package lists and packages need about 150 MB, plus the size of the tar", path.display())]
    NoSpace {
        /// The file that was written.
        path: PathBuf,
    },
    /// The operating system refused an operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> DebianError {
    let path = path.into();
    move |source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => DebianError::NoSpace { path },
        _ => DebianError::Io { operation, path, source },
    }
}

pub(crate) fn bad_package(package: &str, reason: impl Into<String>) -> DebianError {
    DebianError::BadPackage { package: package.to_owned(), reason: reason.into() }
}

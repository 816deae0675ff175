//! What can go wrong, each with what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_linux::trust::Distrust;

/// Result with [`DebianError`].
pub type Result<T, E = DebianError> = std::result::Result<T, E>;

/// Why a root file system could not be made. What is in the cache after any of these is whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DebianError {
    /// No apt or no dpkg: no Debian, Ubuntu or the like.
    #[error(
        "{tool} is not installed, and packages are had by it. On a machine that is not Debian or Ubuntu, make a root \
         directory or tar by other means and use `cofferdam image import`"
    )]
    MissingTool {
        /// The program.
        tool: &'static str,
    },
    /// A program that another user could change. It was not started.
    #[error("{tool} was not started: {distrust}\n{}", distrust.remedy())]
    UntrustedTool {
        /// The program.
        tool: &'static str,
        /// Why.
        distrust: Distrust,
    },
    /// A name that cannot be a package's.
    #[error(
        "'{name}' is no name of a Debian package: lower-case letters, digits, '+', '-' and '.', then `=VERSION` if any"
    )]
    InvalidName {
        /// The name.
        name: String,
    },
    /// No archive answers, and there are no package lists that are fresh enough.
    #[error(
        "no package archive could be reached: {reason}\nIs there a network, does it need a proxy (http_proxy, or \
         Acquire::http::Proxy in apt's configuration)? Try again once `apt-get update` works, or use `cofferdam image import`"
    )]
    NoArchive {
        /// What apt said.
        reason: String,
    },
    /// A signature or a hash of package lists is wrong.
    #[error(
        "the package lists cannot be trusted and were not used: {reason}\nMake `apt-get update` work on this host first: \
         its sources and keyrings are the ones used here"
    )]
    UntrustedArchive {
        /// What apt said.
        reason: String,
    },
    /// The archive lacks a package, or packages that cannot be together.
    #[error("the packages cannot be had: {reason}\nDo the host's sources offer them (`apt-cache policy NAME`)?")]
    Unresolvable {
        /// What apt said.
        reason: String,
    },
    /// A download failed part of the way. What came is kept.
    #[error(
        "packages could not be fetched: {reason}\nTry again: what came is kept in the cache. If a package is not found \
         any more, the archive has a newer one: resolve again"
    )]
    FetchFailed {
        /// What apt said.
        reason: String,
    },
    /// Nothing came for too long.
    #[error("{what} got no byte for {limit:?} and was stopped; try again with a better connection")]
    Stalled {
        /// What was done.
        what: &'static str,
        /// How long it waited.
        limit: Duration,
    },
    /// apt said something that this version does not understand.
    #[error("apt's answer is not understood: '{line}'; please report it with the version of apt")]
    StrangeAnswer {
        /// A line of it.
        line: String,
    },
    /// What came is not what the archive's signed lists name. It was not used.
    #[error(
        "package {package} has the SHA-256 {found}, not {expected}: it was changed or damaged, and was not used. Try \
         again; if it stays so, do not trust the mirror"
    )]
    WrongHash {
        /// The package or its file.
        package: String,
        /// The signed hash.
        expected: String,
        /// The hash of what came.
        found: String,
    },
    /// A package holds what it must not, or is no package.
    #[error("package {package} was refused: {reason}")]
    BadPackage {
        /// The package.
        package: String,
        /// Why.
        reason: String,
    },
    /// The cache is not this user's alone, or apt cannot be told its name.
    #[error("the cache {} cannot be used: {reason}", path.display())]
    BadCache {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process did not give the cache free.
    #[error("another process used {} for {limit:?}; end it, or use another cache", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// The disk is full or the quota used up.
    #[error("no space left for {}: about 150 MB are needed for package lists and packages, and the tar besides", path.display())]
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

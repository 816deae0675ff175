//! A package of a plan, as the archive lists it.

/// A specific version of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// `all`, or the package's architecture.
    pub architecture: String,
    /// Size of its file, in bytes.
    pub size: u64,
    /// The SHA-256 of its file, from the archive's signed lists.
    pub sha256: String,
    pub(crate) file: String,
    pub(crate) uri: String,
}

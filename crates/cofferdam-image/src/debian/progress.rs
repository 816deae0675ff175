//! Progress reports, for progress bars.

/// A step. It is reported when it begins and, if it has a length, while it proceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Waiting for another process that uses the same cache.
    Waiting,
    /// Downloading package lists.
    Updating,
    /// Resolving dependencies.
    Resolving,
    /// Hashing the packages in the cache.
    Checking {
        /// Bytes hashed.
        done: u64,
        /// Size of all packages, in bytes.
        total: u64,
    },
    /// Downloading the packages that are not in the cache.
    Fetching {
        /// Bytes downloaded.
        done: u64,
        /// Size of all packages to download, in bytes.
        total: u64,
    },
    /// Merging packages into the tar.
    Writing {
        /// The current package.
        package: String,
        /// Size of the packages before this one, in bytes.
        done: u64,
        /// Size of all packages, in bytes.
        total: u64,
    },
}

impl Progress {
    /// Returns the bytes done and the total, if this step has a length.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Waiting | Self::Updating | Self::Resolving => None,
            Self::Checking { done, total } | Self::Fetching { done, total } | Self::Writing { done, total, .. } => {
                Some((done, total))
            }
        }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting for another process that uses the same cache",
            Self::Updating => "downloading package lists",
            Self::Resolving => "resolving dependencies",
            Self::Checking { .. } => "checking packages",
            Self::Fetching { .. } => "downloading packages",
            Self::Writing { package, .. } => return write!(f, "packing {package}"),
        })
    }
}

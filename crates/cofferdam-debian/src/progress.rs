//! What is being done, for whoever draws a bar.

/// A step, told when it begins and, where it has a length, while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Another process uses the same cache; waits for it.
    Waiting,
    /// Package lists are fetched.
    Updating,
    /// Dependencies are looked for.
    Resolving,
    /// Packages that are in the cache are hashed.
    Checking {
        /// Bytes hashed.
        done: u64,
        /// Bytes of all packages.
        total: u64,
    },
    /// Packages that are not in the cache are fetched.
    Fetching {
        /// Bytes that came.
        done: u64,
        /// Bytes of all that were missing.
        total: u64,
    },
    /// Packages are merged into the tar.
    Writing {
        /// The package that is read.
        package: String,
        /// Bytes of packages before this one.
        done: u64,
        /// Bytes of all packages.
        total: u64,
    },
}

impl Progress {
    /// Bytes done and bytes of all, if this step has a length.
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
            Self::Waiting => "waiting for whoever uses the same cache",
            Self::Updating => "fetching package lists",
            Self::Resolving => "looking for dependencies",
            Self::Checking { .. } => "checking packages",
            Self::Fetching { .. } => "fetching packages",
            Self::Writing { package, .. } => return write!(f, "packing {package}"),
        })
    }
}

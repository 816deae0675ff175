//! The steps of an installation, for progress reports.

/// A step of [`Runtimes::obtain`](crate::Runtimes::obtain).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Another process is installing the same interpreter, and this one waits until it is done.
    Wait,
    /// A package is being fetched.
    Fetch {
        /// The content of the package.
        what: &'static str,
        /// The approximate size.
        megabytes: u32,
    },
    /// The fetched content is being compared with the pinned hash.
    Verify,
    /// The module is being compiled, which takes about half a minute of CPU time.
    Build,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wait => f.write_str("waiting for another process that is installing the same interpreter"),
            Self::Fetch { what, megabytes } => write!(f, "fetching {what} ({megabytes} MB)"),
            Self::Verify => f.write_str("verifying the fetched files"),
            Self::Build => f.write_str("building the interpreter, which takes about half a minute"),
        }
    }
}

//! Errors of the crate, each with its remedy.

use std::io;
use std::path::Path;

use crate::text;

/// Result with [`ChangesError`].
pub type Result<T, E = ChangesError> = std::result::Result<T, E>;

/// An error from capturing, reading, applying or storing a change set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangesError {
    /// The file is not a change set, or is damaged or hostile.
    #[error("invalid change set at '{entry}': {reason}; nothing was changed, discard the change set")]
    Malformed {
        /// The printable name of the entry.
        entry: String,
        /// The violated rule.
        reason: String,
    },
    /// A limit is exceeded.
    #[error("the change set has more than {max} {what}: raise the limit if the guest really needs that many")]
    TooLarge {
        /// The counted unit.
        what: &'static str,
        /// The limit.
        max: u64,
    },
    /// A directory is not the workspace of the change set.
    #[error(
        "the change set belongs to another directory than the one given: it was captured for '{workspace}'; pass that \
         directory, or allow another one explicitly"
    )]
    WrongDirectory {
        /// The printable path of the workspace.
        workspace: String,
    },
    /// Another process applies changes to the workspace.
    #[error(
        "cannot apply changes to '{path}': another process has had the lock of the directory for {seconds} s; wait until \
         it has ended, and try again"
    )]
    Busy {
        /// The printable path of the workspace.
        path: String,
        /// The time for which the lock was waited for, in seconds.
        seconds: u64,
    },
    /// A file that is to be discarded is not a change set.
    #[error(
        "cannot discard '{path}': it is not a change set, or is damaged ({reason}); remove the file itself instead"
    )]
    NotAChangeSet {
        /// The printable path of the file.
        path: String,
        /// The violated rule.
        reason: String,
    },
    /// No change matches the patterns of paths.
    #[error("no change matches the patterns: show all changes to see their paths")]
    NoMatch,
    /// No stored change set has this id.
    #[error("no change set has the id '{id}': list the stored change sets for their ids")]
    NotFound {
        /// The requested id or prefix.
        id: String,
    },
    /// More than one stored change set has this prefix.
    #[error("more than one change set has an id that begins with '{id}': pass more digits")]
    Ambiguous {
        /// The requested prefix.
        id: String,
    },
    /// Other users can change the directory of the store.
    #[error("cannot use '{path}' as the store of change sets: {reason}")]
    Exposed {
        /// The printable path of the store.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// The disk is full, or a quota or a file size limit is reached.
    #[error("no space left to {operation} '{path}': free some space and try again")]
    NoSpace {
        /// The failed operation.
        operation: &'static str,
        /// The printable path.
        path: String,
    },
    /// The operating system refused an operation.
    #[error("cannot {operation} '{path}': {source}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The printable path.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(crate) fn io<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> ChangesError {
    let path = text::path(path);
    move |source| {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                ChangesError::NoSpace { operation, path }
            }
            _ => ChangesError::Io { operation, path, source },
        }
    }
}

pub(crate) fn malformed(entry: &[u8], reason: impl Into<String>) -> ChangesError {
    ChangesError::Malformed { entry: text::name(entry), reason: reason.into() }
}

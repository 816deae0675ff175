//! Errors with their remedies.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of opening, writing or reading a log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk or the quota is full, or a limit on file sizes is reached.
    #[error("no space to {doing} {name}; free some, raise the quota, or let retention keep less")]
    NoSpace {
        /// The operation.
        doing: &'static str,
        /// The file, by its name in the directory.
        name: String,
    },
    /// The file system is mounted read-only, or became so after an error.
    #[error("cannot {doing} {name}: the file system is read-only; mount it writable, or choose another directory")]
    ReadOnly {
        /// The operation.
        doing: &'static str,
        /// The file, by its name in the directory.
        name: String,
    },
    /// Another refusal of the operating system.
    #[error("cannot {doing} {name}: {source}; check the directory, its owner and its disk")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file, by its name in the directory.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file or directory that others can change, or whose path others can change.
    #[error("not trusted: {0}; {remedy}", remedy = .0.remedy())]
    Reachable(#[from] cofferdam_linux::trust::Distrust),
    /// A file or directory that another user could change, or of a wrong type.
    #[error("{name} is not trusted: {reason}")]
    Untrusted {
        /// The file, by its name in the directory.
        name: String,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// Another process held the lock for too long.
    #[error("the log was locked for {waited:?}; check for a stopped process that has the log's directory open")]
    Busy {
        /// The time that the caller waited.
        waited: Duration,
    },
    /// A damaged end of the log that no crash explains. Nothing is appended to it.
    #[error(
        "{file} is damaged at byte {offset}: {reason}; verify the log, move it aside, and start a log in a new directory"
    )]
    Damaged {
        /// The segment.
        file: String,
        /// The offset of the damage.
        offset: u64,
        /// The reason.
        reason: String,
    },
    /// A key that does not match, or cannot be used.
    #[error("the key cannot be used: {reason}")]
    Key {
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// An invalid value.
    #[error("{what} is invalid: {reason}")]
    Invalid {
        /// The value.
        what: &'static str,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// A process that was forked after it opened the log. Parent and child would share one lock.
    #[error("the log was opened before a fork; open it again in this process")]
    Forked,
}

impl Error {
    /// Returns true if a retry can succeed without intervention.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::Busy { .. })
    }
}

/// Converts an error of the operating system about a file.
pub(crate) fn failed<E: Into<io::Error>>(doing: &'static str, name: &str) -> impl FnOnce(E) -> Error {
    let name = crate::Text::<256>::new(name).to_string();
    move |error| {
        let source: io::Error = error.into();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Error::NoSpace { doing, name },
            Some(Errno::ROFS) => Error::ReadOnly { doing, name },
            _ => Error::Io { doing, name, source },
        }
    }
}

//! What a daemon and its clients refuse, with what to do about it.

use std::io;

use cofferdam_contract::{Error, ErrorKind, Retry};

/// Something about the socket's directory that cannot be trusted.
pub(crate) fn unsafe_place(path: &std::path::Path, why: &str) -> Error {
    Error::new(ErrorKind::Denied, "find the daemon", format!("the directory {why}"))
        .with_context("path", path.display().to_string())
        .with_remedy("remove it, or let XDG_RUNTIME_DIR name a directory of your own")
}

/// The system refused something about the directory, the lock or the socket.
pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> Error {
    Error::new(ErrorKind::Io, "daemon", what).with_source(source.into())
}

/// Another daemon holds the lock.
pub(crate) fn runs_already(pid: Option<u32>) -> Error {
    let message = match pid {
        Some(pid) => format!("a daemon of this user runs already, as process {pid}"),
        None => "a daemon of this user runs already".to_owned(),
    };
    Error::new(ErrorKind::Conflict, "daemon", message).with_remedy("use it, or end it with `cofferdam daemon stop`")
}

/// The connection broke, or the daemon ended.
pub(crate) fn lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the daemon ended, and the run with it")
        .with_retry(Retry::MayHelp)
        .with_remedy("try again: without a daemon the run is local; --daemon never uses none")
}

/// The other side said what it never says.
pub(crate) fn nonsense(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the daemon sent something that makes no sense")
        .with_remedy("stop it with `cofferdam daemon stop`")
}

/// A request that is larger than any may be.
pub(crate) fn too_large() -> Error {
    Error::invalid("run", "the request is larger than a daemon takes").with_remedy("use --daemon never")
}

/// The daemon is ending.
pub(crate) fn ending() -> Error {
    Error::new(ErrorKind::Unavailable, "run", "the daemon is ending").with_retry(Retry::MayHelp)
}

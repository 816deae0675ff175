//! Errors of a daemon and its clients, each with its remedy.

use std::io;

use cofferdam_contract::{Error, ErrorKind, Retry};

/// Returns the error for a socket directory that cannot be trusted.
pub(crate) fn unsafe_place(path: &std::path::Path, why: &str) -> Error {
    Error::new(ErrorKind::Denied, "find the daemon", format!("the directory {why}"))
        .with_context("path", path.display().to_string())
        .with_remedy("remove it, or let XDG_RUNTIME_DIR name a directory of your own")
}

/// Returns the error for an operation on the directory, the lock or the socket that the system refused.
pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> Error {
    Error::new(ErrorKind::Io, "daemon", what).with_source(source.into())
}

/// Returns the error for a lock that another daemon holds.
pub(crate) fn runs_already(pid: Option<u32>) -> Error {
    let message = match pid {
        Some(pid) => format!("a daemon of this user is already running as process {pid}"),
        None => "a daemon of this user is already running".to_owned(),
    };
    Error::new(ErrorKind::Conflict, "daemon", message).with_remedy("use it, or end it with `cofferdam daemon stop`")
}

/// Returns the error for a connection that broke or a daemon that ended.
pub(crate) fn lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the daemon ended, and the run with it")
        .with_retry(Retry::MayHelp)
        .with_remedy("try again: without a daemon the run is local; --daemon never uses none")
}

/// Returns the error for an unexpected message from the other side.
pub(crate) fn invalid_message(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the daemon sent an invalid message")
        .with_remedy("stop it with `cofferdam daemon stop`")
}

/// Returns the error for a request over the size limit.
pub(crate) fn too_large() -> Error {
    Error::invalid("run", "the request exceeds the daemon's size limit").with_remedy("use --daemon never")
}

/// Returns the error for a request to a daemon that is stopping.
pub(crate) fn stopping() -> Error {
    Error::new(ErrorKind::Unavailable, "run", "the daemon is stopping").with_retry(Retry::MayHelp)
}

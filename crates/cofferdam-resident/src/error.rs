//! Errors of a server and its clients, each with its remedy.

use std::io;

use cofferdam_contract::{Error, ErrorKind, Retry};

/// Returns the error for a socket directory that cannot be trusted.
pub(crate) fn unsafe_directory(path: &std::path::Path, why: &str) -> Error {
    Error::new(ErrorKind::Denied, "find the server", format!("the directory {why}"))
        .with_context("path", path.display().to_string())
        .with_remedy("remove it, or let XDG_RUNTIME_DIR name a directory of your own")
}

/// Returns the error for an operation on the directory, the lock or the socket that the system refused.
pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> Error {
    Error::new(ErrorKind::Io, "serve", what).with_source(source.into())
}

/// Returns the error for a lock that another server holds.
pub(crate) fn runs_already(pid: Option<u32>) -> Error {
    let message = match pid {
        Some(pid) => format!("a server of this user is already running as process {pid}"),
        None => "a server of this user is already running".to_owned(),
    };
    Error::new(ErrorKind::Conflict, "serve", message).with_remedy("use it, or end it with `cofferdam serve stop`")
}

/// Returns the error for a connection that broke or a server that ended.
pub(crate) fn lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the server ended, and the run with it")
        .with_retry(Retry::MayHelp)
        .with_remedy("try again: without a server the run is local; --use-server never uses none")
}

/// Returns the error for an unexpected message from the other side.
pub(crate) fn invalid_message(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the server sent an invalid message")
        .with_remedy("stop it with `cofferdam serve stop`")
}

/// Returns the error for a request over the size limit.
pub(crate) fn too_large() -> Error {
    Error::invalid("run", "the request exceeds the server's size limit").with_remedy("use --use-server never")
}

/// Returns the error for a request to a server that is stopping.
pub(crate) fn stopping() -> Error {
    Error::new(ErrorKind::Unavailable, "run", "the server is stopping").with_retry(Retry::MayHelp)
}

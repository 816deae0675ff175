//! Errors of this crate's own, in the contract's type.

use cofferdam_contract::{Error, ErrorKind, Fault};

/// What says that an interpreter is not there, where the backend said that its program is not.
pub fn not_started(error: Error, language: &str, program: &str) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    Error::new(ErrorKind::NotFound, "execute", format!("{language} cannot run here: the sandbox has no '{program}'"))
        .with_fault(Fault::Host)
        .with_remedy(format!(
            "install {program} on the host for level process, or name an image that has it; \
             [languages.{language}] in the configuration can name another interpreter"
        ))
        .with_source(error)
}

/// A task that died.
pub fn task(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "a task of its own ended early")
}

/// What cannot be made known of itself.
pub fn random(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, "execute", format!("the host gives no random bytes: {error}"))
}

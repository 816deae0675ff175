//! Errors of this crate, as errors of the contract.

use cofferdam_contract::{Error, ErrorKind, Fault};

/// Converts the error for a missing program into one for a missing interpreter.
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

/// Creates the error for a background task that ended early.
pub fn task(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "a background task ended early")
}

/// Creates the error for a failure of the random number generator.
pub fn random(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, "execute", format!("cannot read random bytes: {error}"))
}

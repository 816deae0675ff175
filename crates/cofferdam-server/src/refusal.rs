//! Errors that say when a retry can succeed.

use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind};

/// The key of the context that has the time in milliseconds.
pub const RETRY_AFTER: &str = "retry-after-ms";

/// Creates the error of a rate or quota that is used up for `wait`.
pub fn exhausted(operation: &'static str, message: impl Into<String>, wait: Duration) -> Error {
    Error::new(ErrorKind::ResourceExhausted, operation, message).with_context(RETRY_AFTER, wait.as_millis().to_string())
}

/// Creates the error of a server that has no room for `wait`.
pub fn overloaded(operation: &'static str, message: impl Into<String>, wait: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, operation, message).with_context(RETRY_AFTER, wait.as_millis().to_string())
}

/// Returns the time after which a retry can succeed, if the error says so.
pub fn retry_after(error: &Error) -> Option<Duration> {
    let (_, millis) = error.context().find(|(key, _)| *key == RETRY_AFTER)?;
    millis.parse().ok().map(Duration::from_millis)
}

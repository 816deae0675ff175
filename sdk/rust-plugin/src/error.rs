//! Errors of requests, in both directions.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The maximum length of a message in bytes.
const MAX_MESSAGE: usize = 4096;

/// A result of a method or a service.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which decides its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not JSON.
    ParseError,
    /// The JSON is no request, or a request at the wrong time.
    InvalidRequest,
    /// The receiver has no such method.
    MethodNotFound,
    /// The parameters do not fit the method.
    InvalidParams,
    /// The receiver failed.
    Internal,
    /// The request was cancelled.
    Cancelled,
    /// The manifest does not permit the request.
    PermissionDenied,
    /// The request took too long.
    Timeout,
    /// A method of a plugin failed.
    PluginFailed,
    /// A limit or quota is exhausted.
    Limit,
    /// The object does not exist.
    NotFound,
    /// The other plugin crashed, is restarting, or its circuit is open.
    Unavailable,
    /// The object was changed by another request.
    Conflict,
}

/// The kinds with their codes.
const CODES: [(ErrorKind, i64); 13] = [
    (ErrorKind::ParseError, -32700),
    (ErrorKind::InvalidRequest, -32600),
    (ErrorKind::MethodNotFound, -32601),
    (ErrorKind::InvalidParams, -32602),
    (ErrorKind::Internal, -32603),
    (ErrorKind::Cancelled, -32800),
    (ErrorKind::PermissionDenied, -32001),
    (ErrorKind::Timeout, -32002),
    (ErrorKind::PluginFailed, -32003),
    (ErrorKind::Limit, -32004),
    (ErrorKind::NotFound, -32005),
    (ErrorKind::Unavailable, -32006),
    (ErrorKind::Conflict, -32007),
];

impl ErrorKind {
    /// Returns the code in a response.
    pub fn code(self) -> i64 {
        CODES.iter().find(|(kind, _)| *kind == self).map_or(-32603, |(_, code)| *code)
    }

    fn of_code(code: i64) -> Self {
        CODES.iter().find(|(_, known)| *known == code).map_or(Self::PluginFailed, |(kind, _)| *kind)
    }
}

/// An error of a method or of a service.
///
/// Every [`std::error::Error`] converts to one of the kind [`ErrorKind::PluginFailed`], so `?` works in methods. For the
/// same reason, this type does not implement that trait itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// The failure and its reason.
    pub message: String,
    /// Further members of `data`, such as `permission`, `target` and `remedy`.
    pub data: Map<String, Value>,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        let mut end = MAX_MESSAGE.min(message.len());
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        Self { kind, message, data: Map::new() }
    }

    /// Creates the error of a method that failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::PluginFailed, message)
    }

    /// Creates an error for parameters that do not fit.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidParams, message)
    }

    /// Adds a member to `data`.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.data.insert(name.to_owned(), value.into());
        self
    }

    /// States that another attempt may succeed.
    pub fn retryable(self) -> Self {
        self.with("retryable", true)
    }

    /// Returns the member `error` of a response.
    pub(crate) fn to_wire(&self) -> Value {
        let mut data = self.data.clone();
        data.insert("kind".to_owned(), json!(self.kind));
        json!({"code": self.kind.code(), "message": self.message, "data": data})
    }

    /// Reads the member `error` of a response. Returns `None` if it is not an error of JSON-RPC 2.0.
    pub(crate) fn from_wire(error: &Value) -> Option<Self> {
        let kind = ErrorKind::of_code(error.get("code")?.as_i64()?);
        let message = error.get("message")?.as_str()?;
        let mut data = error.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
        data.remove("kind");
        Some(Self { data, ..Self::new(kind, message) })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self::failed(error.to_string()).with("type", std::any::type_name::<E>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_round_trips_through_json() {
        for (kind, code) in CODES {
            let error = Error::new(kind, "no").with("target", "x");
            assert_eq!(error.to_wire()["code"], code);
            assert_eq!(Error::from_wire(&error.to_wire()), Some(error));
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = Error::failed("ü".repeat(MAX_MESSAGE).split_off(2) + "x");
        assert!(error.message.len() <= MAX_MESSAGE);
        assert_eq!(Error::failed(format!("x{}", "ü".repeat(MAX_MESSAGE))).message.len(), MAX_MESSAGE - 1);
    }

    #[test]
    fn other_errors_keep_their_type() {
        let error: Error = "x".parse::<u8>().unwrap_err().into();
        assert_eq!(error.kind, ErrorKind::PluginFailed);
        assert_eq!(error.data["type"], "core::num::error::ParseIntError");
    }
}

//! Errors of requests, in both directions.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The maximum length of a message in bytes. A plugin may send any text.
const MAX_MESSAGE: usize = 4096;

/// The maximum size of `data` as JSON. A plugin may send any values.
const MAX_DATA: usize = 64 << 10;

/// The kind of an error, which decides its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The text is not JSON.
    ParseError,
    /// The JSON is no request.
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
    /// The plugin's method raised an error.
    PluginFailed,
    /// A limit or quota is exhausted.
    Limit,
    /// The object does not exist.
    NotFound,
    /// The plugin cannot be reached: it crashed, is restarting, or its circuit is open.
    Unavailable,
    /// The object was changed by another request.
    Conflict,
}

/// The kinds with their codes. Codes from -32768 to -32600 are those of JSON-RPC 2.0, and -32800 is that of the Language
/// Server Protocol.
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

    /// Returns the kind of a code. A code without a kind is one of the plugin's own.
    pub fn of_code(code: i64) -> Self {
        CODES.iter().find(|(_, known)| *known == code).map_or(Self::PluginFailed, |(kind, _)| *kind)
    }
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallError {
    /// The kind.
    pub kind: ErrorKind,
    /// The failure and its reason.
    pub message: String,
    /// Further members of `data`, such as `permission`, `target` and `remedy`.
    pub data: Map<String, Value>,
}

impl CallError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        }
        Self { kind, message, data: Map::new() }
    }

    /// Adds a member to `data`.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.data.insert(name.to_owned(), value.into());
        self
    }

    /// Creates an error for parameters that do not fit.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidParams, message)
    }

    /// Creates an error for an object that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Returns the member `error` of a response.
    pub fn to_json(&self) -> Value {
        let mut data = self.data.clone();
        data.insert("kind".to_owned(), serde_json::to_value(self.kind).unwrap_or_default());
        json!({"code": self.kind.code(), "message": self.message, "data": data})
    }

    /// Reads the member `error` of a response. Returns `None` if it is not an error of JSON-RPC 2.0.
    pub fn from_json(error: &Value) -> Option<Self> {
        let code = error.get("code")?.as_i64()?;
        let message = error.get("message")?.as_str()?;
        let mut data = error.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
        data.remove("kind");
        if Value::Object(data.clone()).to_string().len() > MAX_DATA {
            data = Map::from_iter([("truncated".to_owned(), Value::Bool(true))]);
        }
        Some(Self { data, ..Self::new(ErrorKind::of_code(code), message) })
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_round_trips_through_json() {
        for (kind, code) in CODES {
            let error = CallError::new(kind, "no").with("target", "x");
            let value = error.to_json();
            assert_eq!(value["code"], code);
            assert_eq!(CallError::from_json(&value), Some(error));
        }
    }

    #[test]
    fn an_own_code_of_a_plugin_is_its_failure() {
        let error = CallError::from_json(&json!({"code": 7, "message": "x"})).unwrap();
        assert_eq!(error.kind, ErrorKind::PluginFailed);
        assert_eq!(CallError::from_json(&json!({"code": "7", "message": "x"})), None);
    }
}

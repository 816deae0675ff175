//! The error type of the contract: what failed, which party caused it, and whether a retry can help.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A result with the contract's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure. Frontends map it to exit codes and HTTP statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is malformed or contradicts itself.
    InvalidInput,
    /// The backend does not offer this operation or setting.
    Unsupported,
    /// The host cannot enforce a requested protection. Nothing was started.
    #[serde(rename = "weaker-than-asked")]
    WeakerThanRequired,
    /// A policy forbids the operation.
    Denied,
    /// A file, command, backend or sandbox does not exist.
    NotFound,
    /// The command exists but cannot be executed.
    NotExecutable,
    /// A path points outside the workspace, or at an object that is not a regular file or directory.
    PathEscape,
    /// The object already exists, or has a type that the operation does not accept.
    Conflict,
    /// A limit or quota is used up.
    ResourceExhausted,
    /// The sandbox or exec was closed before or during the operation.
    Closed,
    /// The host lacks a prerequisite of the backend, such as a daemon, a permission or a kernel feature.
    Unavailable,
    /// The operating system refused an operation for a reason not covered above.
    Io,
    /// A bug in Cofferdam.
    Internal,
}

impl ErrorKind {
    /// Returns the kebab-case name used in JSON and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid-input",
            Self::Unsupported => "unsupported",
            Self::WeakerThanRequired => "weaker-than-asked",
            Self::Denied => "denied",
            Self::NotFound => "not-found",
            Self::NotExecutable => "not-executable",
            Self::PathEscape => "path-escape",
            Self::Conflict => "conflict",
            Self::ResourceExhausted => "resource-exhausted",
            Self::Closed => "closed",
            Self::Unavailable => "unavailable",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }

    /// Returns the exit code of the command line for this kind: 127 for `NotFound` and 126 for `NotExecutable`, as
    /// shells use them; 125 for all others.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::NotFound => 127,
            Self::NotExecutable => 126,
            _ => 125,
        }
    }
}

/// The party that caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The caller: the request was wrong.
    Caller,
    /// The guest: code inside the sandbox.
    Guest,
    /// The host: a prerequisite is missing or the machine failed.
    Host,
    /// A policy forbade the operation.
    Policy,
}

/// The chance that a retry of the same call succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Retry {
    /// The same call fails again until the cause is removed.
    Never,
    /// The same call may succeed later.
    MayHelp,
}

/// An error of an operation of the contract.
///
/// [`Error::message`] describes what failed and why. [`Error::remedy`] describes what to do next, if that is known.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    fault: Fault,
    retry: Retry,
    operation: Cow<'static, str>,
    message: String,
    remedy: Option<String>,
    context: Vec<(Cow<'static, str>, String)>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error of `kind` for `operation`. Fault and retry take the kind's default values.
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        let fault = match kind {
            ErrorKind::Denied => Fault::Policy,
            ErrorKind::PathEscape => Fault::Guest,
            ErrorKind::InvalidInput
            | ErrorKind::Unsupported
            | ErrorKind::NotFound
            | ErrorKind::NotExecutable
            | ErrorKind::Conflict
            | ErrorKind::Closed => Fault::Caller,
            ErrorKind::WeakerThanRequired
            | ErrorKind::ResourceExhausted
            | ErrorKind::Unavailable
            | ErrorKind::Io
            | ErrorKind::Internal => Fault::Host,
        };
        let retry = match kind {
            ErrorKind::ResourceExhausted | ErrorKind::Unavailable => Retry::MayHelp,
            _ => Retry::Never,
        };
        Self {
            inner: Box::new(Inner {
                kind,
                fault,
                retry,
                operation: operation.into(),
                message: message.into(),
                remedy: None,
                context: Vec::new(),
                source: None,
            }),
        }
    }

    /// Creates an `Unsupported` error: the backend does not offer `what`.
    pub fn unsupported(operation: &'static str, what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, operation, what)
    }

    /// Creates an `InvalidInput` error: the request is malformed.
    pub fn invalid(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, operation, message)
    }

    /// Creates a `Closed` error: the sandbox or exec is closed.
    pub fn closed(operation: &'static str) -> Self {
        Self::new(ErrorKind::Closed, operation, "the sandbox or exec is closed")
    }

    /// Sets the party at fault, if it differs from the kind's default.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.inner.fault = fault;
        self
    }

    /// Sets whether a retry can help, if that differs from the kind's default.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.inner.retry = retry;
        self
    }

    /// Adds a remedy: what the reader can do next.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.inner.remedy = Some(remedy.into());
        self
    }

    /// Adds a key and value as context, such as a path or an id. The value must not be a secret.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.inner.context.push((key.into(), value.into()));
        self
    }

    /// Adds the error of a close that followed this failure as context. Returns the error unchanged if the close
    /// succeeded.
    #[must_use]
    pub fn with_failed_close(self, closed: Result<()>) -> Self {
        match closed {
            Ok(()) => self,
            Err(error) => self.with_context("close", error.to_string()),
        }
    }

    /// Attaches the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into().into());
        self
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        self.inner.fault
    }

    /// Returns whether a retry can help.
    pub fn retry(&self) -> Retry {
        self.inner.retry
    }

    /// Returns the name of the operation that failed, such as `create` or `read_file`.
    pub fn operation(&self) -> &str {
        &self.inner.operation
    }

    /// Returns the message: what failed and why, without operation, context and remedy.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Returns what to do next, if known.
    pub fn remedy(&self) -> Option<&str> {
        self.inner.remedy.as_deref()
    }

    /// Returns the context as pairs of key and value.
    pub fn context(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.context.iter().map(|(key, value)| (key.as_ref(), value.as_str()))
    }

    /// Returns the error as a JSON object with the keys `kind`, `fault`, `retry`, `operation`, `message`, `remedy` and
    /// `context`.
    pub fn to_json(&self) -> serde_json::Value {
        let context: serde_json::Map<_, _> =
            self.context().map(|(key, value)| (key.to_owned(), value.into())).collect();
        serde_json::json!({
            "kind": self.kind(),
            "fault": self.fault(),
            "retry": self.retry(),
            "operation": self.operation(),
            "message": self.message(),
            "remedy": self.remedy(),
            "context": context,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.inner.operation, self.inner.message)?;
        for (key, value) in &self.inner.context {
            write!(f, " [{key}: {value}]")?;
        }
        if let Some(source) = &self.inner.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("fault", &self.inner.fault)
            .field("retry", &self.inner.retry)
            .field("operation", &self.inner.operation)
            .field("message", &self.inner.message)
            .field("remedy", &self.inner.remedy)
            .field("context", &self.inner.context)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

/// Combines the outcome of an operation with the outcome of the close that followed it. Returns the operation's error
/// if it failed, with the close's error as context. Otherwise returns the close's error, if any.
pub fn after_close<T>(outcome: Result<T>, closed: Result<()>) -> Result<T> {
    match outcome {
        Ok(done) => closed.map(|()| done),
        Err(error) => Err(error.with_failed_close(closed)),
    }
}

/// An [`Error`] as plain data, for transfer to another process that restores the same error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorData {
    /// See [`Error::kind`].
    pub kind: ErrorKind,
    /// See [`Error::fault`].
    pub fault: Fault,
    /// See [`Error::retry`].
    pub retry: Retry,
    /// See [`Error::operation`].
    pub operation: String,
    /// See [`Error::message`].
    pub message: String,
    /// See [`Error::remedy`].
    pub remedy: Option<String>,
    /// See [`Error::context`].
    pub context: Vec<(String, String)>,
    /// The text of the error that caused this one.
    pub cause: Option<String>,
}

impl From<&Error> for ErrorData {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            fault: error.fault(),
            retry: error.retry(),
            operation: error.operation().to_owned(),
            message: error.message().to_owned(),
            remedy: error.remedy().map(str::to_owned),
            context: error.context().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            cause: error.source().map(ToString::to_string),
        }
    }
}

impl From<ErrorData> for Error {
    fn from(data: ErrorData) -> Self {
        let ErrorData { kind, fault, retry, operation, message, remedy, context, cause } = data;
        let cause: Option<Box<dyn StdError + Send + Sync>> = cause.map(Into::into);
        Self {
            inner: Box::new(Inner {
                kind,
                fault,
                retry,
                operation: operation.into(),
                message,
                remedy,
                context: context.into_iter().map(|(key, value)| (key.into(), value)).collect(),
                source: cause.map(Into::into),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Server): An error is the same after its transfer as data.
    #[test]
    fn an_error_is_the_same_after_a_way_as_data() {
        let error = Error::new(ErrorKind::Io, "read_file", "cannot open")
            .with_context("path", "a/b")
            .with_fault(Fault::Guest)
            .with_retry(Retry::MayHelp)
            .with_remedy("look")
            .with_source(std::io::Error::from_raw_os_error(2));
        let text = serde_json::to_string(&ErrorData::from(&error)).unwrap();
        let back = Error::from(serde_json::from_str::<ErrorData>(&text).unwrap());
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!(back.to_json(), error.to_json());
    }

    /// Promise (Contract): An error names the operation, the reason, the context and the source.
    #[test]
    fn display_names_operation_message_context_and_source() {
        let error = Error::new(ErrorKind::Io, "read_file", "cannot open")
            .with_context("path", "a/b")
            .with_source(std::io::Error::from_raw_os_error(2));
        let text = error.to_string();
        assert!(text.starts_with("read_file failed: cannot open [path: a/b]: "), "{text}");
    }

    /// Promise (Contract): An error states which party caused it and whether a retry can help.
    #[test]
    fn kinds_know_the_guilty_party() {
        assert_eq!(Error::invalid("x", "y").fault(), Fault::Caller);
        assert_eq!(Error::new(ErrorKind::WeakerThanRequired, "x", "y").fault(), Fault::Host);
        assert_eq!(Error::new(ErrorKind::Denied, "x", "y").fault(), Fault::Policy);
        assert_eq!(ErrorKind::NotFound.exit_code(), 127);
    }
}

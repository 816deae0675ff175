//! Errors as problem documents of RFC 9457, with the contract's kinds.

use std::time::Duration;

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cofferdam_contract::{Error, ErrorKind, Fault, Retry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::refusal;

/// The type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The description of an error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A URI of the kind, such as `urn:cofferdam:error:not-found`.
    #[serde(rename = "type")]
    pub kind_uri: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The failure and its reason.
    pub detail: String,
    /// The kind.
    pub kind: ErrorKind,
    /// The party at fault.
    pub fault: Fault,
    /// The chance that a retry succeeds.
    pub retry: Retry,
    /// The operation that failed.
    pub operation: String,
    /// The next step, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Objects of the operation, such as a path.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub context: std::collections::BTreeMap<String, String>,
}

/// An error as an answer.
#[derive(Debug)]
pub struct Failure(pub StatusCode, pub Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(status(&error), error)
    }
}

impl Failure {
    /// Creates the answer to a request without valid credentials.
    pub fn unauthorized(message: &str) -> Self {
        let error = Error::new(ErrorKind::Denied, "authenticate", message).with_fault(Fault::Caller);
        let remedy = "send a valid key as 'Authorization: Bearer KEY'; cofferdam keys create makes one";
        Self(StatusCode::UNAUTHORIZED, error.with_remedy(remedy))
    }

    /// Creates the answer to a request with a token that is not valid.
    pub fn invalid_token(message: &str) -> Self {
        let Self(status, error) = Self::unauthorized(message);
        Self(status, error.with_remedy("get a new token from the issuer of this server's tokens"))
    }

    /// Creates the answer to a malformed request.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Error::invalid("read request", message).into()
    }
}

/// Returns the status of an error.
fn status(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Closed => StatusCode::GONE,
        ErrorKind::Unsupported | ErrorKind::WeakerThanRequired | ErrorKind::NotExecutable | ErrorKind::PathEscape => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        ErrorKind::ResourceExhausted if refusal::retry_after(error).is_some() => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn title(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidInput => "The request is malformed",
        ErrorKind::Unsupported => "The backend does not offer this",
        ErrorKind::WeakerThanRequired => "The host cannot enforce a protection",
        ErrorKind::Denied => "A policy forbids the operation",
        ErrorKind::NotFound => "The object does not exist",
        ErrorKind::NotExecutable => "The command cannot be executed",
        ErrorKind::PathEscape => "The path leaves the workspace",
        ErrorKind::Conflict => "The object is in another state",
        ErrorKind::ResourceExhausted => "A limit or quota is used up",
        ErrorKind::Closed => "The object is closed",
        ErrorKind::Unavailable => "The service is not available now",
        ErrorKind::Io => "The operating system refused an operation",
        _ => "The server failed",
    }
}

impl From<&Failure> for Problem {
    fn from(Failure(status, error): &Failure) -> Self {
        // The text of a source may name files of the host. It is for the operator's log.
        Self {
            kind_uri: format!("urn:cofferdam:error:{}", error.kind().as_str()),
            title: title(error.kind()).to_owned(),
            status: status.as_u16(),
            detail: error.message().to_owned(),
            kind: error.kind(),
            fault: error.fault(),
            retry: error.retry(),
            operation: error.operation().to_owned(),
            remedy: error.remedy().map(str::to_owned),
            context: error
                .context()
                .filter(|(key, _)| *key != refusal::RETRY_AFTER)
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

impl Problem {
    /// Returns the error that the document describes.
    pub fn into_error(self) -> Error {
        cofferdam_contract::ErrorData {
            kind: self.kind,
            fault: self.fault,
            retry: self.retry,
            operation: self.operation,
            message: self.detail,
            remedy: self.remedy,
            context: self.context.into_iter().collect(),
            cause: None,
        }
        .into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.0, Json(Problem::from(&self))).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if self.0 == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let wait = refusal::retry_after(&self.1);
        if let Some(wait) = wait.or((self.0 == StatusCode::SERVICE_UNAVAILABLE).then_some(Duration::from_secs(1))) {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_millis().div_ceil(1000).max(1) as u64));
        }
        response.extensions_mut().insert(self.1.kind());
        response
    }
}

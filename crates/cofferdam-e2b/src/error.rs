//! Failures of requests to E2B, and their errors of the contract.

use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Fault, Retry};

/// The most characters of a text of E2B in an error.
const MAX_SHOWN: usize = 300;
/// The text of E2B's proxy for a sandbox that is not there any more.
const GONE: &str = "was not found";

/// A request that failed.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// No complete answer came: the connection failed, was cut, or was silent for too long.
    Cut(String),
    /// E2B refused the request.
    Refused(Refusal),
    /// The answer is not one of this protocol.
    Foreign(String),
}

/// A refusal of E2B: an HTTP status, or the status that a code of the Connect protocol stands for.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub status: u16,
    pub message: String,
    pub retry_after: Option<Duration>,
    /// True for the agent in the VM, false for the API.
    pub by_agent: bool,
}

/// Returns the status that a code of the Connect protocol has over HTTP.
pub(crate) fn status_of(code: &str) -> u16 {
    match code {
        "invalid_argument" | "failed_precondition" | "out_of_range" => 400,
        "unauthenticated" => 401,
        "permission_denied" => 403,
        "not_found" => 404,
        "already_exists" | "aborted" => 409,
        "resource_exhausted" => 429,
        "unimplemented" => 501,
        "unavailable" => 503,
        "deadline_exceeded" => 504,
        _ => 500,
    }
}

/// Returns a text of E2B that is safe to print.
pub(crate) fn shown(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN).collect();
    short.escape_debug().to_string()
}

impl Failure {
    /// Returns true if the sandbox is not there any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Refused(Refusal { by_agent: false, status, .. }) => *status == 404,
            Self::Refused(Refusal { status: 502 | 503, message, .. }) => message.contains(GONE),
            _ => false,
        }
    }

    /// Returns true if the process, or another object of the agent, is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused(Refusal { by_agent: true, status: 404, .. }))
    }

    /// Returns true if the same request may succeed soon.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Cut(_) => true,
            Self::Refused(refusal) => matches!(refusal.status, 429 | 502..=504) && !self.is_gone(),
            Self::Foreign(_) => false,
        }
    }

    /// Returns the time after which E2B wants the request again, if it says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            _ => None,
        }
    }

    /// Returns the error of an operation.
    pub fn into_error(self, operation: &'static str) -> Error {
        if self.is_gone() {
            return gone(operation);
        }
        match self {
            Self::Cut(reason) => Error::new(ErrorKind::Unavailable, operation, "E2B gave no complete answer")
                .with_context("reason", reason)
                .with_remedy("check the network and the addresses (E2B_DOMAIN, E2B_API_URL), then try again"),
            Self::Foreign(reason) => {
                Error::new(ErrorKind::Unavailable, operation, "the answer is not of E2B's protocol")
                    .with_retry(Retry::Never)
                    .with_context("reason", reason)
                    .with_remedy("check E2B_DOMAIN and E2B_API_URL")
            }
            Self::Refused(refusal) => refused(refusal, operation),
        }
    }
}

/// Returns the error for a sandbox that E2B has no more.
pub(crate) fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, operation, "the sandbox no longer exists at E2B: it timed out or was deleted")
        .with_remedy("create another sandbox")
}

fn refused(refusal: Refusal, operation: &'static str) -> Error {
    let Refusal { status, message, retry_after, by_agent } = refusal;
    let new = |kind, text: &str| Error::new(kind, operation, text);
    let error = match status {
        401 if by_agent => {
            new(ErrorKind::Denied, "the agent of the sandbox refused its token").with_remedy("create another sandbox")
        }
        401 => new(ErrorKind::Denied, "E2B refused the key").with_remedy("set E2B_API_KEY to a valid key"),
        403 => new(ErrorKind::Denied, "E2B refused the request").with_remedy("check what the key may do"),
        404 => new(ErrorKind::NotFound, "the sandbox has no such object"),
        409 => new(ErrorKind::Conflict, "the state of the sandbox does not allow the request"),
        429 => new(ErrorKind::ResourceExhausted, "a rate limit or quota of the E2B account is exhausted")
            .with_remedy("wait, or ask E2B for a larger quota"),
        507 => new(ErrorKind::ResourceExhausted, "the disk of the sandbox is full")
            .with_fault(Fault::Guest)
            .with_remedy("remove files, or use a template with a larger disk"),
        501 => new(ErrorKind::Unsupported, "the agent of the sandbox does not know the request")
            .with_remedy("build the template again: its agent is too old"),
        500.. => new(ErrorKind::Unavailable, "E2B answered with a server error")
            .with_remedy("try again later, and check E2B's status page"),
        _ => new(ErrorKind::InvalidInput, "E2B did not accept the request"),
    };
    let error = error.with_context("status", status.to_string());
    let error = if message.is_empty() { error } else { error.with_context("E2B", message) };
    match retry_after {
        Some(time) => error.with_context("retry after", format!("{} s", time.as_secs())),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, message: &str, by_agent: bool) -> Failure {
        Failure::Refused(Refusal { status, message: message.to_owned(), retry_after: None, by_agent })
    }

    /// Promise (E2B): A refusal of E2B becomes the error that names its cause and what to do.
    #[test]
    fn refusals_have_a_kind_and_a_remedy() {
        for (failed, kind, retry) in [
            (failure(401, "", false), ErrorKind::Denied, Retry::Never),
            (failure(403, "", false), ErrorKind::Denied, Retry::Never),
            (failure(404, "", false), ErrorKind::Closed, Retry::Never),
            (failure(502, "The sandbox was not found", true), ErrorKind::Closed, Retry::Never),
            (failure(502, "bad gateway", true), ErrorKind::Unavailable, Retry::MayHelp),
            (failure(429, "slow down", false), ErrorKind::ResourceExhausted, Retry::MayHelp),
            (failure(500, "", false), ErrorKind::Unavailable, Retry::MayHelp),
            (failure(507, "", true), ErrorKind::ResourceExhausted, Retry::MayHelp),
            (Failure::Cut("reset".to_owned()), ErrorKind::Unavailable, Retry::MayHelp),
            (Failure::Foreign("no JSON".to_owned()), ErrorKind::Unavailable, Retry::Never),
        ] {
            let error = failed.clone().into_error("start");
            assert_eq!((error.kind(), error.retry()), (kind, retry), "{failed:?}");
            assert!(error.remedy().is_some(), "{failed:?}");
        }
        assert!(failure(404, "", true).is_missing() && !failure(404, "", true).is_gone());
        assert_eq!(shown(&"a\u{1b}".repeat(1000)).chars().filter(|c| *c == 'a').count(), 150);
    }
}

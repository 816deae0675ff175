//! Conversion of an engine's answers to errors of the contract, with cause and remedy.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use bollard::errors::Error as Answer;
use cofferdam_contract::{Error, ErrorKind, Fault, Retry};
use cofferdam_linux::named::UntrustedLink;
use cofferdam_linux::trust::Distrust;
use cofferdam_util::text::excerpt;

use crate::config::Address;

/// A failed call.
#[derive(Debug)]
pub(crate) enum Failed {
    /// No answer within this time.
    Silent(Duration),
    /// An error, or an answer that cannot be parsed.
    Answered(Answer),
}

impl Failed {
    /// Returns the status of the engine's answer, if there is one.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Answered(Answer::DockerResponseServerError { status_code, .. }) => Some(*status_code),
            _ => None,
        }
    }

    /// Returns true if the object does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        self.status() == Some(404)
    }

    /// Returns true if the engine does not answer: it has ended, is restarting, or hangs.
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Answered(answer) => is_away(answer),
        }
    }

    /// Returns true if the answer has a value that the API does not define, such as Podman's brief state `stopped`.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Answered(Answer::JsonDataError { .. }))
    }

    /// Returns the engine's message.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Silent(limit) => format!("no answer within {} s", limit.as_secs_f64()),
            Self::Answered(Answer::DockerResponseServerError { message, .. }) => excerpt(message),
            Self::Answered(Answer::DockerStreamError { error }) => excerpt(error),
            Self::Answered(other) => excerpt(&chain(other)),
        }
    }

    /// Converts the failure to an error of the contract. `doing` completes "cannot …".
    pub(crate) fn into_error(self, operation: &'static str, doing: &str, address: &Address) -> Error {
        let message = self.message();
        let error = match &self {
            Self::Silent(limit) => {
                let seconds = limit.as_secs_f64();
                let what = format!("cannot {doing}: the container engine gave no answer within {seconds} s");
                Error::new(ErrorKind::Unavailable, operation, what)
                    .with_remedy("check the engine (`systemctl status docker`, its log): it hangs or is overloaded")
            }
            Self::Answered(answer) if is_away(answer) => {
                let what = format!("cannot {doing}: the container engine went away ({message})");
                Error::new(ErrorKind::Unavailable, operation, what)
                    .with_remedy("try again when `docker version` answers")
            }
            Self::Answered(_) => {
                let (kind, remedy) = classify(self.status(), &message);
                let error = Error::new(kind, operation, format!("cannot {doing}: {message}")).with_fault(Fault::Host);
                match remedy {
                    Some(remedy) => error.with_remedy(remedy),
                    None => error,
                }
            }
        };
        error.with_context("engine", address.to_string())
    }
}

fn chain(error: &Answer) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

fn is_away(answer: &Answer) -> bool {
    match answer {
        Answer::RequestTimeoutError
        | Answer::HyperResponseError { .. }
        | Answer::HyperLegacyError { .. }
        | Answer::SocketNotFoundError(_) => true,
        Answer::IOError { err } => !matches!(err.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput),
        Answer::DockerResponseServerError { status_code, .. } => matches!(status_code, 502..=504),
        _ => false,
    }
}

/// Classifies an error of the engine. Returns its kind and remedy.
fn classify(status: Option<u16>, message: &str) -> (ErrorKind, Option<String>) {
    let lower = message.to_ascii_lowercase();
    let has = |text: &str| lower.contains(text);
    if has("no space left") || has("disk quota exceeded") {
        return (
            ErrorKind::ResourceExhausted,
            Some(
                "the engine's disk is full: `docker system df` shows its usage, `docker system prune` frees space"
                    .to_owned(),
            ),
        );
    }
    if has("too many open files") || has("cannot allocate memory") || has("resource temporarily unavailable") {
        let remedy = "the engine's host is out of memory, processes or descriptors: create fewer sandboxes at once";
        return (ErrorKind::ResourceExhausted, Some(remedy.to_owned()));
    }
    if has("cgroup") && (has("permission denied") || has("delegat") || has("rootless")) {
        let remedy = "a rootless engine needs delegated control groups: see the engine's manual on limits of resources";
        return (ErrorKind::Unavailable, Some(remedy.to_owned()));
    }
    if has("oci runtime") || has("failed to create task") || has("runtime create failed") {
        let remedy = "the OCI runtime cannot create the container; `cofferdam doctor` shows the engine's features";
        return (ErrorKind::Unavailable, Some(remedy.to_owned()));
    }
    match status {
        Some(401 | 403) => (
            ErrorKind::Denied,
            Some(
                "the engine or the registry denied it: use `docker login` and `docker pull` for a private image"
                    .to_owned(),
            ),
        ),
        Some(404) => (ErrorKind::NotFound, None),
        Some(409) => (ErrorKind::Conflict, None),
        Some(400) => (ErrorKind::Unsupported, None),
        _ => (ErrorKind::Unavailable, None),
    }
}

/// The reason why no engine is reached at an address.
#[derive(Debug)]
pub(crate) enum Unreachable {
    /// It cannot be connected to.
    Io(io::Error),
    /// Another user could replace the socket.
    Untrusted(Distrust),
}

impl From<Distrust> for Unreachable {
    fn from(distrust: Distrust) -> Self {
        match distrust {
            Distrust::Io { source, .. } => Self::Io(source),
            Distrust::Unsafe { .. } => Self::Untrusted(distrust),
        }
    }
}

/// Returns the reason and the remedy for an unreachable address.
pub(crate) fn unreachable(address: &Address, reason: &Unreachable) -> (String, &'static str) {
    let error = match reason {
        Unreachable::Io(error) => error,
        Unreachable::Untrusted(distrust) => {
            return (
                format!("{address}: the socket is not trusted: {}", excerpt(&distrust.to_string())),
                "use an engine of root or of your own user, whose socket is in directories that only they can change \
                 (`chmod go-w DIR`), or run Cofferdam as the user that the engine belongs to",
            );
        }
    };
    let (why, remedy) = match (address, error.kind()) {
        (Address::Unix(_), io::ErrorKind::NotFound) => (
            "there is no socket",
            "install and start Docker (`systemctl start docker`) or Podman (`systemctl --user start podman.socket`), or \
             set DOCKER_HOST to another address",
        ),
        (_, io::ErrorKind::ConnectionRefused) => (
            "no server listens",
            "the engine is not running: start it (`systemctl start docker`, `systemctl --user start podman.socket`)",
        ),
        (_, io::ErrorKind::PermissionDenied) => (
            "this user cannot open the socket",
            "join the group `docker` (which is equivalent to root), or use your own rootless engine: \
             `dockerd-rootless-setuptool.sh install` or `systemctl --user start podman.socket`",
        ),
        (_, io::ErrorKind::TimedOut) => ("no answer", "the engine hangs, or the address is wrong: look at its log"),
        _ => ("cannot connect", "check that this is the address of a container engine, or set DOCKER_HOST to another"),
    };
    (format!("{address}: {why} ({error})"), remedy)
}

/// Converts an operating system error during `operation`.
pub(crate) fn os(operation: &'static str, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
        _ => ErrorKind::Io,
    };
    Error::new(kind, operation, what).with_source(error)
}

/// Creates the error for a file or directory of the caller that cannot be opened.
pub(crate) fn named(operation: &'static str, what: &str, path: &Path, error: io::Error) -> Error {
    let failed = match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, operation, format!("{what}: {link}"))
            .with_remedy(UntrustedLink::REMEDY)
            .with_source(error),
        None if error.kind() == io::ErrorKind::NotADirectory => {
            Error::new(ErrorKind::InvalidInput, operation, format!("{what}: it is not a directory")).with_source(error)
        }
        None => os(operation, what, error),
    };
    failed.with_context("path", path.display().to_string())
}

/// Creates the error for an image that the engine does not have.
pub(crate) fn no_image(operation: &'static str, image: &str, is_default: bool) -> Error {
    let remedy = if is_default {
        "build it with `cofferdam image build`, or use an image that the engine has (`cofferdam image ls --engine`)"
    } else {
        "pull it (`--pull missing`, or `cofferdam image pull`), or import a directory: `cofferdam image import DIR NAME`"
    };
    Error::new(ErrorKind::NotFound, operation, "the container engine has no such image")
        .with_context("image", image.to_owned())
        .with_retry(Retry::Never)
        .with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16, message: &str) -> Error {
        let answer = Answer::DockerResponseServerError { status_code, message: message.to_owned() };
        Failed::Answered(answer).into_error("create", "create the container", &Address::Unix("/s".into()))
    }

    #[test]
    fn answer_becomes_an_error_with_a_remedy() {
        for (status, message, kind) in [
            (500, "write /x: no space left on device", ErrorKind::ResourceExhausted),
            (500, "OCI runtime create failed: x", ErrorKind::Unavailable),
            (403, "denied", ErrorKind::Denied),
            (503, "starting", ErrorKind::Unavailable),
        ] {
            let error = answered(status, message);
            assert_eq!(error.kind(), kind, "{message}");
            assert!(error.remedy().is_some(), "{message}");
        }
        assert_eq!(answered(404, "no such container").kind(), ErrorKind::NotFound);
    }

    #[test]
    fn answer_is_printed_bounded_and_without_control_characters() {
        let text = answered(500, &format!("a\u{1b}[2Jb\n{}é", "x".repeat(2000))).to_string();
        assert!(text.chars().all(|c| !c.is_control()) && text.len() < 1200, "{text}");
    }

    #[test]
    fn silence_is_an_error_that_a_retry_can_help() {
        let error = Failed::Silent(Duration::from_secs(3)).into_error("create", "start", &Address::Tcp("h:1".into()));
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::MayHelp));
        assert!(error.to_string().contains("3 s"), "{error}");
    }
}

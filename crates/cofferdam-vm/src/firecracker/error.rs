//! What Firecracker answers, or fails to, as errors of the contract.

use std::io;
use std::path::Path;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Fault, Retry};

/// The longest text of Firecracker's that is passed on.
const MAX_TEXT: usize = 1000;
const READ_THE_LOG: &str = "Firecracker's log says why; make a new machine";
const ANOTHER_PROGRAM: &str = "is this Firecracker, of a version that is supported? `firecracker --version` says";

/// A call that did not do what it should.
#[derive(Debug)]
pub(super) enum Failed {
    /// What is asked for cannot be said in JSON.
    Unsayable(serde_json::Error),
    /// Nobody could be reached.
    Unreachable(io::Error),
    /// No answer within this time.
    Silent(Duration),
    /// The connection ended, or what came was not HTTP.
    Broken(String),
    /// The answer is longer than this many bytes.
    TooLong(usize),
    /// An answer that makes no sense, because of this.
    Senseless(String),
    /// Another status than the one that says it was done, and what was said with it.
    Refused { status: u16, message: String },
}

impl Failed {
    /// As an error of the contract. `doing` completes "cannot …".
    pub(super) fn into_error(self, operation: &'static str, doing: &str, socket: &Path) -> Error {
        let failed = |kind, why: &str| Error::new(kind, operation, format!("cannot {doing}: {why}"));
        let away = |why: &str| failed(ErrorKind::Unavailable, why).with_retry(Retry::Never);
        let error = match self {
            Self::Unsayable(error) => {
                failed(ErrorKind::InvalidInput, &error.to_string()).with_remedy("use paths that are UTF-8")
            }
            Self::Unreachable(error) => unreachable(doing, operation, error),
            Self::Silent(limit) => {
                let why = format!("Firecracker gave no answer within {} s", limit.as_secs_f64());
                failed(ErrorKind::Unavailable, &why)
                    .with_remedy("it hangs, or the host is overloaded: look at its log, or make fewer machines at once")
            }
            Self::Broken(why) => {
                away(&format!("the connection to Firecracker broke ({})", shown(&why))).with_remedy(READ_THE_LOG)
            }
            Self::TooLong(limit) => {
                away(&format!("Firecracker's answer is longer than {limit} bytes")).with_remedy(ANOTHER_PROGRAM)
            }
            Self::Senseless(why) => {
                away(&format!("Firecracker's answer makes no sense ({})", shown(&why))).with_remedy(ANOTHER_PROGRAM)
            }
            Self::Refused { status, message } => refused(status, &shown(&message), &failed),
        };
        error.with_context("socket", socket.display().to_string())
    }
}

fn unreachable(doing: &str, operation: &'static str, error: io::Error) -> Error {
    let (why, retry, remedy) = match error.kind() {
        io::ErrorKind::NotFound => ("there is no socket yet, or no longer", Retry::MayHelp, READ_THE_LOG),
        io::ErrorKind::ConnectionRefused => ("Firecracker has ended", Retry::Never, READ_THE_LOG),
        io::ErrorKind::PermissionDenied => {
            ("this user may not open the socket", Retry::Never, "be the user that Firecracker runs as, or root")
        }
        io::ErrorKind::InvalidInput => (
            "something else stands in its socket's place",
            Retry::Never,
            "make a new machine, and keep others out of its directory",
        ),
        _ => ("Firecracker cannot be reached", Retry::MayHelp, READ_THE_LOG),
    };
    Error::new(ErrorKind::Unavailable, operation, format!("cannot {doing}: {why}"))
        .with_retry(retry)
        .with_remedy(remedy)
        .with_source(error)
}

fn refused(status: u16, words: &str, failed: &dyn Fn(ErrorKind, &str) -> Error) -> Error {
    let said = if words.is_empty() { format!("status {status}") } else { format!("status {status}: {words}") };
    match status {
        400 => {
            let (kind, remedy) = judge(words);
            failed(kind, &said).with_fault(Fault::Host).with_remedy(remedy)
        }
        404 | 405 => failed(ErrorKind::Unsupported, &said)
            .with_fault(Fault::Host)
            .with_remedy("this Firecracker is too old: `firecracker --version` says which it is"),
        500..=599 => failed(ErrorKind::Unavailable, &said).with_remedy(READ_THE_LOG),
        _ => failed(ErrorKind::Unavailable, &said).with_retry(Retry::Never).with_remedy(ANOTHER_PROGRAM),
    }
}

/// What a refusal amounts to, and what to do about it. Firecracker has one status for everything, so that the words
/// decide; where they say nothing known, it is the setting that was bad.
fn judge(words: &str) -> (ErrorKind, &'static str) {
    let lower = words.to_ascii_lowercase();
    let has = |text: &str| lower.contains(text);
    if has("no space left") || has("quota exceeded") || has("file too large") {
        return (ErrorKind::ResourceExhausted, "free some space where the machine's files are, or raise its limit");
    }
    if has("cannot allocate memory") || has("out of memory") || has("too many open files") {
        return (
            ErrorKind::ResourceExhausted,
            "the host is short of memory or descriptors: make fewer machines at once",
        );
    }
    if has("unknown field") || has("unknown variant") {
        return (ErrorKind::Unsupported, "this Firecracker does not know the setting: use a newer version");
    }
    if has("/dev/kvm") || has("kvm") {
        return (ErrorKind::Unavailable, "`cofferdam doctor` says whether this host can run virtual machines");
    }
    if has("after starting the microvm") || has("before starting the microvm") || has("already") {
        return (ErrorKind::Conflict, "the machine has started already, or has not yet");
    }
    if has("permission denied") || has("operation not permitted") {
        return (ErrorKind::Denied, "let the user that Firecracker runs as open the file");
    }
    if has("no such file") {
        return (ErrorKind::NotFound, "name files that are there; in a jail, paths begin at its root");
    }
    (ErrorKind::InvalidInput, "Firecracker refuses the setting: change it")
}

/// Text from outside, in a form that can be printed.
pub(super) fn shown(text: &str) -> String {
    let text = text.trim();
    let end = (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let cut = if end < text.len() { " …" } else { "" };
    let clean: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{clean}{cut}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, message: &str) -> Error {
        Failed::Refused { status, message: message.to_owned() }.into_error("create", "start", Path::new("/s"))
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (status, message, kind) in [
            (400, "Cannot write: No space left on device (os error 28)", ErrorKind::ResourceExhausted),
            (400, "Cannot create mmap region: Cannot allocate memory", ErrorKind::ResourceExhausted),
            (400, "unknown field `vsock_override`, expected one of", ErrorKind::Unsupported),
            (400, "Failed to open /dev/kvm: Permission denied", ErrorKind::Unavailable),
            (400, "The requested operation is not supported after starting the microVM.", ErrorKind::Conflict),
            (400, "Unable to open the block device: Permission denied", ErrorKind::Denied),
            (400, "The kernel file cannot be opened: No such file or directory", ErrorKind::NotFound),
            (400, "Invalid vCPU number", ErrorKind::InvalidInput),
            (404, "", ErrorKind::Unsupported),
            (500, "x", ErrorKind::Unavailable),
            (302, "", ErrorKind::Unavailable),
        ] {
            let error = refusal(status, message);
            assert_eq!(error.kind(), kind, "{status} {message}");
            assert!(error.remedy().is_some(), "{status} {message}");
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
        assert_eq!(refusal(503, "").retry(), Retry::MayHelp);
        assert_eq!(refusal(200, "").retry(), Retry::Never);
    }

    #[test]
    fn what_firecracker_says_is_printed_without_control_characters_and_not_for_ever() {
        let text = refusal(400, &format!("a\u{1b}[2Jb\n{}é", "x".repeat(2000))).to_string();
        assert!(text.chars().all(|c| !c.is_control()) && text.len() < 1200, "{text}");
    }
}

//! Firecracker's errors, as errors of the contract.

use std::io;
use std::path::Path;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Fault, Retry};
use cofferdam_util::text::excerpt;

const READ_THE_LOG: &str = "read Firecracker's log, and create a new VM";
const ANOTHER_PROGRAM: &str = "check that this is a supported version of Firecracker: `firecracker --version`";

/// A failed call.
#[derive(Debug)]
pub(super) enum Failed {
    /// The request cannot be encoded as JSON.
    Unencodable(serde_json::Error),
    /// The socket could not be connected.
    Unreachable(io::Error),
    /// No answer within this time.
    Silent(Duration),
    /// The connection ended, or the answer was not HTTP.
    Broken(String),
    /// The answer is longer than this many bytes.
    TooLong(usize),
    /// A malformed answer, for this reason.
    Malformed(String),
    /// An unexpected status, and the message with it.
    Refused { status: u16, message: String },
}

impl Failed {
    /// Converts it to an error of the contract. `doing` completes "cannot …".
    pub(super) fn into_error(self, operation: &'static str, doing: &str, socket: &Path) -> Error {
        let failed = |kind, why: &str| Error::new(kind, operation, format!("cannot {doing}: {why}"));
        let away = |why: &str| failed(ErrorKind::Unavailable, why).with_retry(Retry::Never);
        let error = match self {
            Self::Unencodable(error) => {
                failed(ErrorKind::InvalidInput, &error.to_string()).with_remedy("use paths that are UTF-8")
            }
            Self::Unreachable(error) => unreachable(doing, operation, error),
            Self::Silent(limit) => {
                let why = format!("Firecracker gave no answer within {} s", limit.as_secs_f64());
                failed(ErrorKind::Unavailable, &why)
                    .with_remedy("it hangs, or the host is overloaded: read its log, or start fewer VMs at once")
            }
            Self::Broken(why) => {
                away(&format!("the connection to Firecracker broke ({})", excerpt(&why))).with_remedy(READ_THE_LOG)
            }
            Self::TooLong(limit) => {
                away(&format!("Firecracker's answer is longer than {limit} bytes")).with_remedy(ANOTHER_PROGRAM)
            }
            Self::Malformed(why) => {
                away(&format!("Firecracker's answer is malformed ({})", excerpt(&why))).with_remedy(ANOTHER_PROGRAM)
            }
            Self::Refused { status, message } => refused(status, &excerpt(&message), &failed),
        };
        error.with_context("socket", socket.display().to_string())
    }
}

fn unreachable(doing: &str, operation: &'static str, error: io::Error) -> Error {
    let (why, retry, remedy) = match error.kind() {
        io::ErrorKind::NotFound => ("the socket does not exist", Retry::MayHelp, READ_THE_LOG),
        io::ErrorKind::ConnectionRefused => ("Firecracker has ended", Retry::Never, READ_THE_LOG),
        io::ErrorKind::PermissionDenied => {
            ("this user may not open the socket", Retry::Never, "run as the user that Firecracker runs as, or as root")
        }
        io::ErrorKind::InvalidInput => {
            ("the path is not a socket", Retry::Never, "create a new VM, and deny other users access to its directory")
        }
        _ => ("Firecracker cannot be reached", Retry::MayHelp, READ_THE_LOG),
    };
    Error::new(ErrorKind::Unavailable, operation, format!("cannot {doing}: {why}"))
        .with_retry(retry)
        .with_remedy(remedy)
        .with_source(error)
}

fn refused(status: u16, message: &str, failed: &dyn Fn(ErrorKind, &str) -> Error) -> Error {
    let why = if message.is_empty() { format!("status {status}") } else { format!("status {status}: {message}") };
    match status {
        400 => {
            let (kind, remedy) = classify(message);
            failed(kind, &why).with_fault(Fault::Host).with_remedy(remedy)
        }
        404 | 405 => failed(ErrorKind::Unsupported, &why)
            .with_fault(Fault::Host)
            .with_remedy("install a newer Firecracker; `firecracker --version` shows the version"),
        500..=599 => failed(ErrorKind::Unavailable, &why).with_remedy(READ_THE_LOG),
        _ => failed(ErrorKind::Unavailable, &why).with_retry(Retry::Never).with_remedy(ANOTHER_PROGRAM),
    }
}

/// Returns the kind of a refusal, and its remedy. Firecracker uses one status for everything, so the message decides;
/// an unknown message counts as an invalid setting.
fn classify(message: &str) -> (ErrorKind, &'static str) {
    let lower = message.to_ascii_lowercase();
    let has = |text: &str| lower.contains(text);
    if has("no space left") || has("quota exceeded") || has("file too large") {
        return (ErrorKind::ResourceExhausted, "free space where the VM's files are, or raise its limit");
    }
    if has("cannot allocate memory") || has("out of memory") || has("too many open files") {
        return (ErrorKind::ResourceExhausted, "the host is short of memory or descriptors: start fewer VMs at once");
    }
    if has("unknown field") || has("unknown variant") {
        return (ErrorKind::Unsupported, "this Firecracker does not know the setting: use a newer version");
    }
    if has("/dev/kvm") || has("kvm") {
        return (ErrorKind::Unavailable, "`cofferdam doctor` shows whether this host can run VMs");
    }
    if has("after starting the microvm") || has("before starting the microvm") || has("already") {
        return (ErrorKind::Conflict, "the request is not valid before or after the VM's start");
    }
    if has("permission denied") || has("operation not permitted") {
        return (ErrorKind::Denied, "let the user that Firecracker runs as open the file");
    }
    if has("no such file") {
        return (ErrorKind::NotFound, "name existing files; in a jail, paths start at its root");
    }
    (ErrorKind::InvalidInput, "Firecracker refuses the setting: change it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, message: &str) -> Error {
        Failed::Refused { status, message: message.to_owned() }.into_error("create", "start", Path::new("/s"))
    }

    #[test]
    fn refusals_map_to_error_kinds_with_remedies() {
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
    fn firecracker_messages_are_truncated_and_sanitized() {
        let text = refusal(400, &format!("a\u{1b}[2Jb\n{}é", "x".repeat(2000))).to_string();
        assert!(text.chars().all(|c| !c.is_control()) && text.len() < 1200, "{text}");
    }
}

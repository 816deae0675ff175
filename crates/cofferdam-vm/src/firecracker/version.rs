//! Versions of Firecracker, and the supported range.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_util::text::excerpt;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

/// The oldest version with the required API: a vsock override and a clock update for restored VMs.
pub(super) const OLDEST: Version = Version { major: 1, minor: 16, patch: 0 };
/// The newest version whose API description the requests were checked against.
const NEWEST_DESCRIBED: Version = Version { major: 1, minor: 17, patch: 0 };
/// The oldest supported version: the first whose guests accept new connections from the host after a resume. In older
/// versions, each of them hangs.
const HEARS_AFTER_RESUME: Version = Version { major: 1, minor: 16, patch: 2 };
/// Maximum length of a program's version output.
const MAX_OUTPUT: u64 = 4096;

/// A version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    /// Incremented for breaking changes.
    major: u32,
    /// Incremented for features.
    minor: u32,
    /// Incremented for fixes.
    patch: u32,
}

impl Version {
    /// Parses `1.16.1`, with an optional prefix `v` and an optional suffix such as `-dev`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        if !matches!(text[end..].chars().next(), None | Some('-' | '+')) {
            return None;
        }
        let mut numbers = text[..end].split('.').map(|number| number.parse().ok());
        let version = Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(version)
    }

    /// Returns true if the vsock accepts new streams after the VM was paused and resumed. Otherwise a VM with a vsock
    /// must not be paused, except for a snapshot after which it ends.
    pub(super) fn hears_after_resume(self) -> bool {
        self >= HEARS_AFTER_RESUME
    }

    /// Fails if the version is too old, or has an unknown major version. Within a major version, Firecracker has removed
    /// nothing so far, so versions newer than the described one are supported.
    pub(super) fn check_supported(self, operation: &'static str) -> Result<()> {
        let unsupported = |remedy| {
            let newest = NEWEST_DESCRIBED.major;
            let message =
                format!("Firecracker {self} is not supported; supported are {HEARS_AFTER_RESUME} and newer {newest}.x");
            Err(Error::new(ErrorKind::Unavailable, operation, message).with_retry(Retry::Never).with_remedy(remedy))
        };
        if self < OLDEST {
            unsupported("install a newer Firecracker")
        } else if self.major > NEWEST_DESCRIBED.major {
            unsupported("install an older Firecracker, or a newer Cofferdam")
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Queries the version of a program, `firecracker` or `jailer`.
pub(super) async fn of_program(operation: &'static str, program: &Path, deadline: Duration) -> Result<Version> {
    let failed = |why: String| {
        Error::new(ErrorKind::Unavailable, operation, format!("cannot query Firecracker's version: {why}"))
            .with_retry(Retry::Never)
            .with_remedy("install Firecracker from its releases, or configure the path of the program")
            .with_context("program", program.display().to_string())
    };
    let mut child = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let Some(stdout) = child.stdout.take() else { return Err(failed("it has no output".to_owned())) };
    let mut text = Vec::new();
    let reading = async {
        stdout.take(MAX_OUTPUT).read_to_end(&mut text).await?;
        child.wait().await
    };
    let ended = timeout(deadline, reading).await;
    match ended {
        Err(_) => {
            return Err(failed(format!("no answer within {} s", deadline.as_secs_f64())).with_retry(Retry::MayHelp));
        }
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Ok(Ok(status)) if !status.success() => return Err(failed(format!("it exited with {status}"))),
        Ok(Ok(_)) => {}
    }
    let text = String::from_utf8_lossy(&text);
    let first = text.lines().next().unwrap_or_default();
    first
        .split_whitespace()
        .next_back()
        .and_then(Version::parse)
        .ok_or_else(|| failed(format!("it prints '{}', which is no version", excerpt(first))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_printed() {
        let version = |major, minor, patch| Some(Version { major, minor, patch });
        for (text, expected) in [
            ("v1.16.1", version(1, 16, 1)),
            ("1.17.0-dev", version(1, 17, 0)),
            ("1.17.0+fuzzing", version(1, 17, 0)),
            ("1.16", None),
            ("1.16.1.2", None),
            ("1.16.x", None),
            ("1..1", None),
            ("1.2.3rc", None),
            ("-1.2.3", None),
            ("99999999999.0.0", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn old_and_unknown_versions_are_refused() {
        let check = |text| Version::parse(text).unwrap().check_supported("create");
        for supported in ["1.16.0", "1.17.9", "1.18.0"] {
            check(supported).unwrap();
        }
        let hears = |text| Version::parse(text).unwrap().hears_after_resume();
        assert!(!hears("1.16.1") && hears("1.16.2") && hears("1.17.0"));
        for (text, remedy) in [("1.15.9", "a newer Firecracker"), ("0.25.0", "a newer Firecracker"), ("2.0.0", "older")]
        {
            let error = check(text).unwrap_err();
            assert!(error.message().contains("supported are 1.16.2 and newer 1.x"), "{error}");
            assert!(error.remedy().is_some_and(|text| text.contains(remedy)), "{error}");
        }
    }
}

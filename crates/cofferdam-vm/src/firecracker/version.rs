//! Versions of Firecracker, and which are accepted.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::error::shown;

/// The first with all that is asked for here: another vsock socket and another clock for restored machines.
pub const OLDEST: Version = Version { major: 1, minor: 16, patch: 0 };
/// The one whose description of the API the requests are held against.
pub const NEWEST_DESCRIBED: Version = Version { major: 1, minor: 17, patch: 0 };
/// The first whose guests hear new connections of the host's after they stood still. Before, each of them hangs.
const HEARS_AFTER_RESUME: Version = Version { major: 1, minor: 16, patch: 2 };
/// No program says more about its version.
const MAX_OUTPUT: u64 = 4096;

/// A version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Changes with what breaks.
    pub major: u32,
    /// Changes with what is new.
    pub minor: u32,
    /// Changes with what is repaired.
    pub patch: u32,
}

/// How a version stands to those that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its API is the one that requests are held against.
    Described,
    /// Newer. Nothing was removed within a major version so far; nobody has looked at this one.
    Newer,
}

impl Version {
    /// Reads `1.16.1`, with or without a `v` before and a suffix such as `-dev` behind.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        if !matches!(text[end..].chars().next(), None | Some('-' | '+')) {
            return None;
        }
        let mut numbers = text[..end].split('.').map(|number| number.parse().ok());
        let version = Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(version)
    }

    /// Whether new streams into a machine can be had by its vsock after it was paused and resumed. Where not, a machine
    /// with a vsock is not to be paused, except for a snapshot after which it ends.
    pub fn hears_after_resume(self) -> bool {
        self >= HEARS_AFTER_RESUME
    }

    /// Fails where the version is too old, or of a major version that nobody knows.
    pub fn standing(self, operation: &'static str) -> Result<Standing> {
        let unsupported = |remedy| {
            let message = format!("Firecracker {self} is not supported: {OLDEST} to {NEWEST_DESCRIBED} are");
            Err(Error::new(ErrorKind::Unavailable, operation, message).with_retry(Retry::Never).with_remedy(remedy))
        };
        if self < OLDEST {
            unsupported("install a newer Firecracker")
        } else if self.major > NEWEST_DESCRIBED.major {
            unsupported("install an older Firecracker, or a newer Cofferdam")
        } else if (self.major, self.minor) > (NEWEST_DESCRIBED.major, NEWEST_DESCRIBED.minor) {
            Ok(Standing::Newer)
        } else {
            Ok(Standing::Described)
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Asks a program, `firecracker` or `jailer`, for its version.
pub async fn of_program(operation: &'static str, program: &Path, limit: Duration) -> Result<Version> {
    let failed = |why: String| {
        Error::new(ErrorKind::Unavailable, operation, format!("cannot ask Firecracker for its version: {why}"))
            .with_retry(Retry::Never)
            .with_remedy("install Firecracker from its releases, or name the program that you have")
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
    let asked = async {
        stdout.take(MAX_OUTPUT).read_to_end(&mut text).await?;
        child.wait().await
    };
    let ended = timeout(limit, asked).await;
    match ended {
        Err(_) => return Err(failed(format!("no answer within {} s", limit.as_secs_f64())).with_retry(Retry::MayHelp)),
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Ok(Ok(status)) if !status.success() => return Err(failed(format!("it ended with {status}"))),
        Ok(Ok(_)) => {}
    }
    let text = String::from_utf8_lossy(&text);
    let first = text.lines().next().unwrap_or_default();
    first
        .split_whitespace()
        .next_back()
        .and_then(Version::parse)
        .ok_or_else(|| failed(format!("it says '{}', which is no version", shown(first))))
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
        let standing = |text| Version::parse(text).unwrap().standing("create");
        assert_eq!(standing("1.16.0").unwrap(), Standing::Described);
        assert_eq!(standing("1.17.9").unwrap(), Standing::Described);
        assert_eq!(standing("1.18.0").unwrap(), Standing::Newer);
        let hears = |text| Version::parse(text).unwrap().hears_after_resume();
        assert!(!hears("1.16.1") && hears("1.16.2") && hears("1.17.0"));
        for (text, remedy) in [("1.15.9", "a newer Firecracker"), ("0.25.0", "a newer Firecracker"), ("2.0.0", "older")]
        {
            let error = standing(text).unwrap_err();
            assert!(error.remedy().is_some_and(|words| words.contains(remedy)), "{error}");
        }
    }
}

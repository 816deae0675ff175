//! How much one call may ask for and bring back. Configuration sets it; no call can widen it.

use std::time::Duration;

use cofferdam_contract::{ByteSize, DEFAULT_MAX_OUTPUT, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The most output that can be configured: it is held in memory.
const MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(256);

/// Upper bounds of one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Real time that a call may ask for, within the sandbox's wall time; `None` is that time.
    #[serde(with = "cofferdam_contract::serde_optional_duration")]
    pub max_timeout: Option<Duration>,
    /// Output that a call may ask for, and gets where it does not. Default 1 MiB.
    pub max_output: ByteSize,
    /// Code of one call. Default 1 MiB.
    pub max_code: ByteSize,
    /// Results beside the output, in bytes as they come from inside. Default 8 MiB.
    pub max_results: ByteSize,
    /// Files that are looked at in the workspace, before and after. Default 10,000.
    pub max_files: usize,
    /// Files that a result names. Default 1000.
    pub max_named_files: usize,
    /// Bytes of files that are read to tell whether they changed, before and after. Default 64 MiB.
    pub max_hashed: ByteSize,
    /// Bytes of files that a result carries, where contents were asked for. Default 1 MiB.
    pub max_contents: ByteSize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_timeout: None,
            max_output: DEFAULT_MAX_OUTPUT,
            max_code: ByteSize::from_mebibytes(1),
            max_results: ByteSize::from_mebibytes(8),
            max_files: 10_000,
            max_named_files: 1000,
            max_hashed: ByteSize::from_mebibytes(64),
            max_contents: ByteSize::from_mebibytes(1),
        }
    }
}

impl Bounds {
    /// Refuses what would need unbounded memory.
    pub(crate) fn validate(&self) -> Result<()> {
        let too_much = self.max_output > MAX_OUTPUT
            || self.max_results > MAX_OUTPUT
            || self.max_contents > MAX_OUTPUT
            || self.max_code > ByteSize::from_mebibytes(8)
            || self.max_files > 100_000;
        if too_much {
            return Err(Error::invalid(
                "configure",
                format!("bounds of code are too high: at most {MAX_OUTPUT} of output, results and contents, 8 MiB of code, 100000 files"),
            )
            .with_remedy("lower them in the table [code] of the configuration, or by --max-output"));
        }
        Ok(())
    }

    /// The time that a call gets, in a sandbox whose execs get `wall`.
    pub(crate) fn timeout(&self, asked: Option<Duration>, wall: Duration) -> Result<Duration> {
        let most = self.max_timeout.map_or(wall, |most| most.min(wall));
        match asked {
            None => Ok(wall.min(most)),
            Some(asked) if asked <= most => Ok(asked),
            Some(asked) => Err(denied(format!(
                "a time-out of {} s is more than the {} s that are allowed",
                asked.as_secs_f64(),
                most.as_secs_f64()
            ))),
        }
    }

    /// The output that a call gets.
    pub(crate) fn output(&self, asked: Option<ByteSize>) -> Result<ByteSize> {
        match asked {
            None => Ok(self.max_output),
            Some(asked) if asked <= self.max_output => Ok(asked),
            Some(asked) => {
                Err(denied(format!("{asked} of output is more than the {} that are allowed", self.max_output)))
            }
        }
    }

    /// Refuses code that is too long.
    pub(crate) fn code(&self, code: &str) -> Result<()> {
        if code.len() as u64 <= self.max_code.as_bytes() {
            return Ok(());
        }
        Err(Error::invalid("execute", format!("the code is longer than the {} that are allowed", self.max_code))
            .with_remedy("put data into a file of the workspace, and read it from there"))
    }
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, "execute", message)
        .with_remedy("ask for less; the configuration sets what is allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_gets_more_than_is_configured() {
        let bounds = Bounds { max_timeout: Some(Duration::from_secs(5)), ..Bounds::default() };
        let wall = Duration::from_secs(60);
        assert_eq!(bounds.timeout(None, wall).unwrap(), Duration::from_secs(5));
        assert_eq!(bounds.timeout(Some(Duration::from_secs(2)), wall).unwrap(), Duration::from_secs(2));
        assert_eq!(bounds.timeout(Some(Duration::from_secs(6)), wall).unwrap_err().kind(), ErrorKind::Denied);
        let wide = Bounds { max_timeout: Some(Duration::from_secs(600)), ..Bounds::default() };
        assert_eq!(wide.timeout(Some(Duration::from_secs(61)), wall).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(Bounds::default().timeout(None, wall).unwrap(), wall);
        assert!(Bounds::default().timeout(Some(Duration::from_secs(61)), wall).is_err());
        assert!(bounds.output(Some(ByteSize::from_mebibytes(2))).is_err());
        assert!(bounds.code(&"x".repeat(2 << 20)).is_err());
        assert!(Bounds { max_output: ByteSize::from_mebibytes(1024), ..Bounds::default() }.validate().is_err());
    }
}

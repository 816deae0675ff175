//! Upper bounds of a call. The configuration sets them; a call cannot raise them.

use std::time::Duration;

use cofferdam_contract::{ByteSize, DEFAULT_MAX_OUTPUT, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The greatest configurable amount of output, which is held in memory.
const MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(256);

/// Upper bounds of one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Maximum wall-clock timeout of a call. `None`, the default, means the wall time of the sandbox, which always
    /// applies.
    #[serde(with = "cofferdam_contract::serde_optional_duration")]
    pub max_timeout: Option<Duration>,
    /// Maximum output of a call, and its default. Default: 1 MiB.
    pub max_output: ByteSize,
    /// Maximum size of the code of a call. Default: 1 MiB.
    pub max_code: ByteSize,
    /// Maximum size of the results besides the output, in bytes as the guest writes them. Default: 8 MiB.
    pub max_results: ByteSize,
    /// Maximum number of files scanned in the workspace, before and after the call. Default: 10,000.
    pub max_files: usize,
    /// Maximum number of files listed in a result. Default: 1000.
    pub max_named_files: usize,
    /// Maximum number of bytes hashed to detect changes, before and after the call. Default: 64 MiB.
    pub max_hashed: ByteSize,
    /// Maximum number of bytes of file contents in a result, if contents were requested. Default: 1 MiB.
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
    /// Rejects bounds that would need too much memory.
    pub(crate) fn validate(&self) -> Result<()> {
        let too_much = self.max_output > MAX_OUTPUT
            || self.max_results > MAX_OUTPUT
            || self.max_contents > MAX_OUTPUT
            || self.max_code > ByteSize::from_mebibytes(8)
            || self.max_files > 100_000;
        if too_much {
            return Err(Error::invalid(
                "configure",
                format!("bounds of code are too high: the maximum is {MAX_OUTPUT} of output, results and contents, 8 MiB of code and 100000 files"),
            )
            .with_remedy("lower them in the table [code] of the configuration, or with --max-output"));
        }
        Ok(())
    }

    /// Returns the timeout of a call, in a sandbox whose execs have the wall time `wall_time`.
    pub(crate) fn timeout(&self, requested: Option<Duration>, wall_time: Duration) -> Result<Duration> {
        let max = self.max_timeout.map_or(wall_time, |max| max.min(wall_time));
        match requested {
            None => Ok(wall_time.min(max)),
            Some(requested) if requested <= max => Ok(requested),
            Some(requested) => Err(denied(format!(
                "a timeout of {} s is more than the allowed {} s",
                requested.as_secs_f64(),
                max.as_secs_f64()
            ))),
        }
    }

    /// Returns the maximum output of a call.
    pub(crate) fn output(&self, requested: Option<ByteSize>) -> Result<ByteSize> {
        match requested {
            None => Ok(self.max_output),
            Some(requested) if requested <= self.max_output => Ok(requested),
            Some(requested) => {
                Err(denied(format!("{requested} of output is more than the allowed {}", self.max_output)))
            }
        }
    }

    /// Rejects code that is too long.
    pub(crate) fn code(&self, code: &str) -> Result<()> {
        if code.len() as u64 <= self.max_code.as_bytes() {
            return Ok(());
        }
        Err(Error::invalid("execute", format!("the code is longer than the allowed {}", self.max_code))
            .with_remedy("write data to a file of the workspace and read it from there"))
    }
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, "execute", message)
        .with_remedy("request less, or raise the bound in the configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Code execution): No call exceeds the configured limits.
    #[test]
    fn no_call_gets_more_than_is_configured() {
        let bounds = Bounds { max_timeout: Some(Duration::from_secs(5)), ..Bounds::default() };
        let wall_time = Duration::from_secs(60);
        assert_eq!(bounds.timeout(None, wall_time).unwrap(), Duration::from_secs(5));
        assert_eq!(bounds.timeout(Some(Duration::from_secs(2)), wall_time).unwrap(), Duration::from_secs(2));
        assert_eq!(bounds.timeout(Some(Duration::from_secs(6)), wall_time).unwrap_err().kind(), ErrorKind::Denied);
        let wide = Bounds { max_timeout: Some(Duration::from_secs(600)), ..Bounds::default() };
        assert_eq!(wide.timeout(Some(Duration::from_secs(61)), wall_time).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(Bounds::default().timeout(None, wall_time).unwrap(), wall_time);
        assert!(Bounds::default().timeout(Some(Duration::from_secs(61)), wall_time).is_err());
        assert!(bounds.output(Some(ByteSize::from_mebibytes(2))).is_err());
        assert!(bounds.code(&"x".repeat(2 << 20)).is_err());
        assert!(Bounds { max_output: ByteSize::from_mebibytes(1024), ..Bounds::default() }.validate().is_err());
    }
}

//! How an exec ended and what it used.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LimitKind;
use crate::units::serde_duration;

/// What one exec used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// CPU seconds, user and system, of all its processes that are accounted for. Where execs overlap, what is charged
    /// to this one towards its limit on CPU time.
    pub cpu_seconds: f64,
    /// The most memory used at once, in bytes: of the whole sandbox where a control group counts it, else of the
    /// largest process. `None` where the backend cannot tell.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes the processes wrote to stdout and stderr, those beyond the output limit included.
    pub output_bytes: u64,
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exit {
    /// The exit code; -1 after a time-out or when a signal ended the program.
    pub code: i32,
    /// The signal that ended the program.
    pub signal: Option<i32>,
    /// Real time ran out and the process tree was killed.
    pub timed_out: bool,
    /// [`crate::ExecHandle::cancel`] or `close` ended it.
    pub cancelled: bool,
    /// Output beyond the request's maximum was dropped.
    pub truncated: bool,
    /// The limit that killed the program.
    pub killed_by: Option<LimitKind>,
    /// Limits at which the kernel refused something (a fork, a write) or killed a process of the sandbox while it ran,
    /// whether or not that ended the program.
    pub limits_hit: Vec<LimitKind>,
    /// Real time from start to end, in seconds.
    #[serde(with = "serde_duration")]
    #[schemars(with = "f64")]
    pub duration: Duration,
    /// What it used.
    pub usage: Usage,
}

impl Exit {
    /// Exit code 0, and nothing ended it early.
    pub fn success(&self) -> bool {
        self.code == 0 && self.signal.is_none() && !self.timed_out
    }

    /// The status as a shell would give it: 124 after a time-out, 137 when a limit killed it, 128+n after signal n.
    pub fn shell_status(&self) -> u8 {
        if self.timed_out {
            124
        } else if self.killed_by.is_some() {
            137
        } else if let Some(signal) = self.signal {
            128u8.saturating_add(u8::try_from(signal).unwrap_or(127))
        } else {
            (self.code & 0xff) as u8
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_shell() {
        let exit = Exit {
            code: 3,
            signal: None,
            timed_out: false,
            cancelled: false,
            truncated: false,
            killed_by: None,
            limits_hit: vec![],
            duration: Duration::ZERO,
            usage: Usage::default(),
        };
        assert_eq!(exit.shell_status(), 3);
        assert_eq!(Exit { code: -1, signal: Some(15), ..exit.clone() }.shell_status(), 143);
        assert_eq!(Exit { code: -1, timed_out: true, ..exit.clone() }.shell_status(), 124);
        assert_eq!(Exit { code: -1, killed_by: Some(LimitKind::Memory), ..exit }.shell_status(), 137);
    }
}

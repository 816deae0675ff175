//! The result of an exec and its resource usage.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LimitKind;
use crate::units::serde_duration;

/// The resource usage of one exec.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// CPU seconds, user and system, that the sandbox used from the exec's start to its end. Other execs and processes
    /// that ran meanwhile are included. If nothing counts the whole sandbox, those of the exec's program and of the
    /// children that it waited for.
    pub cpu_seconds: f64,
    /// Peak memory use, in bytes: of the whole sandbox if a cgroup counts it, otherwise of the largest process. `None`
    /// if the backend cannot measure it.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes that the processes wrote to stdout and stderr, including those beyond the output limit.
    pub output_bytes: u64,
}

/// The result of an exec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exit {
    /// The exit code; -1 after a timeout or if a signal ended the program.
    pub code: i32,
    /// The signal that ended the program, if any.
    pub signal: Option<i32>,
    /// True if the wall-clock timeout expired and the process tree was killed.
    pub timed_out: bool,
    /// True if [`crate::ExecHandle::cancel`] or `close` ended the exec.
    pub cancelled: bool,
    /// True if output beyond the request's maximum was dropped.
    pub truncated: bool,
    /// The limit that killed the program, if any.
    pub killed_by: Option<LimitKind>,
    /// Limits that took effect during the exec, even if they did not end the program: the kernel refused an operation
    /// (a fork, a write) or killed a process of the sandbox.
    pub limits_hit: Vec<LimitKind>,
    /// Wall-clock time from start to end, in seconds.
    #[serde(with = "serde_duration")]
    #[schemars(with = "f64")]
    pub duration: Duration,
    /// Resource usage of the exec.
    pub usage: Usage,
}

impl Exit {
    /// Returns true if the exit code is 0 and neither a signal nor a timeout ended the program.
    pub fn success(&self) -> bool {
        self.code == 0 && self.signal.is_none() && !self.timed_out
    }

    /// Returns the exit status as a shell reports it: 124 after a timeout, 137 if a limit killed the program, 128+n
    /// after signal n, otherwise the low 8 bits of the exit code.
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

    /// Promise (Command line): Exit statuses follow the conventions of shells.
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

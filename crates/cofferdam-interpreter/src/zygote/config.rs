//! What a zygote keeps ready, and for how long.

use std::time::Duration;

use cofferdam_contract::{ExecRequest, Result};

use crate::config::{InterpreterConfig, Runtime};
use crate::error::ConfigError;

/// The most forks that are kept ready.
const MOST_READY: u32 = 32;
/// The most forks that run at once.
const MOST_RUNNING: u32 = 64;
/// The most forks that one zygote makes.
const MOST_FORKS: u32 = 1 << 20;

/// What forks have of `/tmp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Temporary {
    /// All of it together, as programs of one sandbox have it from cold.
    Shared,
    /// Nothing but the fork's own directory, which `TMPDIR` names, and that of its script: no sibling can read or change a
    /// file there. Code that writes to `/tmp` by its name, or to the home directory, which is there, fails.
    Own,
}

/// How a zygote is started, and when it is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZygoteConfig {
    /// The interpreter, its modules and its warm-up. Its `lifetime` is that of the zygote, whatever still runs then; its
    /// `most_output` holds for each request.
    pub interpreter: InterpreterConfig,
    /// Code of the caller's own, trusted, that runs in each fork before its request is known: seeds what only the caller
    /// knows of. In a namespace that is thrown away; nobody reads what it prints.
    pub after_fork: String,
    /// What forks have of `/tmp`. Default [`Temporary::Shared`].
    pub temporary: Temporary,
    /// Forks that wait, warm. Default 2.
    pub ready: u32,
    /// Forks that run at the same time. Default 8.
    pub most_running: u32,
    /// Forks after which it takes no more requests. Default 1000.
    pub max_forks: u32,
    /// The age at which it takes no more requests. Default 30 min.
    pub max_age: Duration,
    /// CPU time of all processes of a fork together, in whole seconds, rounded up; `None` leaves it to the sandbox. Default
    /// `None`.
    pub cpu_time: Option<Duration>,
}

impl ZygoteConfig {
    /// `python3 -u`, without modules.
    pub fn python() -> Self {
        Self::of(InterpreterConfig::python())
    }

    /// With this interpreter, all else default.
    pub fn of(interpreter: InterpreterConfig) -> Self {
        Self {
            interpreter,
            after_fork: String::new(),
            temporary: Temporary::Shared,
            ready: 2,
            most_running: 8,
            max_forks: 1000,
            max_age: Duration::from_secs(1800),
            cpu_time: None,
        }
    }

    /// Processes that a zygote needs besides those of the requests' code: make its sandbox with that many more. A relay,
    /// the zygote, a guard and a process for each fork that waits, a guard for each that runs.
    pub fn extra_processes(&self) -> u32 {
        2 + 2 * self.ready + self.most_running
    }

    /// Whether a fork would run `request` as a run from cold does, but for what `docs/interpreters.md` lists. Pure. The
    /// answer is `Unsupported` for what has to start cold.
    pub fn accepts(&self, request: &ExecRequest) -> Result<()> {
        self.validate()?;
        self.interpreter.accepts(request)
    }

    /// Refuses what contradicts itself; `Unsupported` for an interpreter that cannot be forked.
    pub fn validate(&self) -> Result<()> {
        self.interpreter.validate()?;
        if self.interpreter.runtime == Runtime::Node {
            return Err(ConfigError::CannotFork.into());
        }
        let counts = [(self.ready, MOST_READY), (self.most_running, MOST_RUNNING), (self.max_forks, MOST_FORKS)];
        if counts.iter().any(|(count, most)| *count == 0 || count > most) {
            return Err(ConfigError::BadCount { ready: MOST_READY, running: MOST_RUNNING, forks: MOST_FORKS }.into());
        }
        if self.max_age.is_zero() || self.cpu_time.is_some_and(|time| time.is_zero()) {
            return Err(ConfigError::BadAge.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::ErrorKind;

    #[test]
    fn contradictions_and_interpreters_that_cannot_fork_are_refused() {
        let python = ZygoteConfig::python;
        assert!(python().validate().is_ok());
        for bad in [
            ZygoteConfig { ready: 0, ..python() },
            ZygoteConfig { ready: MOST_READY + 1, ..python() },
            ZygoteConfig { most_running: 0, ..python() },
            ZygoteConfig { max_forks: 0, ..python() },
            ZygoteConfig { max_age: Duration::ZERO, ..python() },
            ZygoteConfig { cpu_time: Some(Duration::ZERO), ..python() },
            ZygoteConfig::of(InterpreterConfig { command: Vec::new(), ..InterpreterConfig::python() }),
        ] {
            assert_eq!(bad.validate().map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{bad:?}");
        }
        let error = ZygoteConfig::of(InterpreterConfig::node()).validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("Node"), "{error}");
        let request = ExecRequest::argv(["node", "x.js"]).build().unwrap();
        let error = ZygoteConfig::of(InterpreterConfig::node()).accepts(&request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

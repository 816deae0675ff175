//! The configuration of prepared interpreters.

use std::time::Duration;

use cofferdam_contract::{Error, Result, serde_duration};
use cofferdam_interpreter::InterpreterConfig;
use serde::{Deserialize, Serialize};

/// The greatest number of prepared interpreters of one kind.
const MAX_READY: usize = 64;
/// The greatest number of kinds.
const MAX_KINDS: usize = 16;

/// A kind of prepared interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedInterpreter {
    /// The kind's name in the metrics, such as `python`.
    pub name: String,
    /// The start and warm-up of an interpreter.
    pub interpreter: InterpreterConfig,
    /// Number of idle interpreters.
    pub ready: usize,
}

/// The configuration of [`crate::Interpreters`]. Every count and wait is bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpretersConfig {
    /// The kinds of interpreters.
    pub prepared: Vec<PreparedInterpreter>,
    /// The times of refills and replacements.
    pub times: InterpreterTimes,
}

impl InterpretersConfig {
    /// Creates a configuration of these kinds with the default times.
    pub fn new(prepared: impl IntoIterator<Item = PreparedInterpreter>) -> Self {
        Self { prepared: prepared.into_iter().collect(), times: InterpreterTimes::default() }
    }

    /// Returns the total number of idle interpreters when all kinds are filled.
    pub fn ready(&self) -> usize {
        self.prepared.iter().map(|prepared| prepared.ready).sum()
    }

    /// Checks the configuration. Fails with `InvalidInput` for values that contradict each other or exceed a maximum.
    pub fn validate(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::invalid("configure", message));
        if self.prepared.len() > MAX_KINDS || self.prepared.iter().any(|prepared| prepared.ready > MAX_READY) {
            return bad("at most 16 kinds with 64 interpreters each can be prepared");
        }
        let InterpreterTimes { refill_delay: _, max_age, make_timeout, first_backoff, max_backoff, check_every } =
            &self.times;
        if [max_age, make_timeout, first_backoff, check_every].iter().any(|time| time.is_zero()) {
            return bad("the times of prepared interpreters must not be 0, except refill_delay");
        }
        if first_backoff > max_backoff {
            return bad("first_backoff must not exceed max_backoff");
        }
        Ok(())
    }
}

/// The times of creation, replacement and health checks of interpreters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InterpreterTimes {
    /// Delay of a refill after an interpreter was taken, so that the refill does not compete with it for the
    /// processors. Default: 20 ms.
    #[serde(with = "serde_duration")]
    pub refill_delay: Duration,
    /// Time after which an idle interpreter is replaced. Default: 10 min.
    #[serde(with = "serde_duration")]
    pub max_age: Duration,
    /// Timeout of the creation of an interpreter, sandbox and warm-up together. Default: 120 s.
    #[serde(with = "serde_duration")]
    pub make_timeout: Duration,
    /// Backoff after the first failure. It doubles with each further failure. Default: 1 s.
    #[serde(with = "serde_duration")]
    pub first_backoff: Duration,
    /// Maximum backoff after failures. Default: 5 min.
    #[serde(with = "serde_duration")]
    pub max_backoff: Duration,
    /// Interval between two health checks of idle interpreters. Default: 5 s.
    #[serde(with = "serde_duration")]
    pub check_every: Duration,
}

impl Default for InterpreterTimes {
    fn default() -> Self {
        Self {
            refill_delay: Duration::from_millis(20),
            max_age: Duration::from_secs(600),
            make_timeout: Duration::from_secs(120),
            first_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(300),
            check_every: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let prepared =
            |ready| PreparedInterpreter { name: "python".into(), interpreter: InterpreterConfig::python(), ready };
        assert!(InterpretersConfig::new([prepared(1)]).validate().is_ok());
        assert!(InterpretersConfig::new([prepared(65)]).validate().is_err());
        assert!(InterpretersConfig::new((0..17).map(|_| prepared(1))).validate().is_err());
        let times = |times| InterpretersConfig { times, ..InterpretersConfig::new([]) };
        let default = InterpreterTimes::default;
        assert!(times(InterpreterTimes { max_age: Duration::ZERO, ..default() }).validate().is_err());
        assert!(times(InterpreterTimes { first_backoff: Duration::from_secs(900), ..default() }).validate().is_err());
    }
}

//! Which interpreters are kept ready, and how many.

use std::time::Duration;

use cofferdam_contract::{Error, Result, serde_duration};
use cofferdam_interpreter::InterpreterConfig;
use serde::{Deserialize, Serialize};

/// The most interpreters of one kind that are kept ready.
const MAX_READY: usize = 64;
/// The most kinds.
const MAX_KINDS: usize = 16;

/// One kind of interpreter that is kept ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptInterpreter {
    /// The name in the metrics, such as `python`.
    pub name: String,
    /// How it is started and warmed.
    pub interpreter: InterpreterConfig,
    /// How many wait.
    pub ready: usize,
}

/// How [`crate::Interpreters`] are kept. Every count and wait has a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpretersConfig {
    /// The kinds.
    pub kept: Vec<KeptInterpreter>,
    /// When to make which.
    pub times: InterpreterTimes,
}

impl InterpretersConfig {
    /// These kinds, with the default times.
    pub fn new(kept: impl IntoIterator<Item = KeptInterpreter>) -> Self {
        Self { kept: kept.into_iter().collect(), times: InterpreterTimes::default() }
    }

    /// How many wait when all do.
    pub fn ready(&self) -> usize {
        self.kept.iter().map(|kept| kept.ready).sum()
    }

    /// Refuses what contradicts itself.
    pub fn validate(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::invalid("configure", message));
        if self.kept.len() > MAX_KINDS || self.kept.iter().any(|kept| kept.ready > MAX_READY) {
            return bad("at most 64 interpreters of each of 16 kinds are kept ready");
        }
        let InterpreterTimes { refill_delay: _, max_age, make_timeout, first_backoff, longest_backoff, check_every } =
            &self.times;
        if [max_age, make_timeout, first_backoff, check_every].iter().any(|time| time.is_zero()) {
            return bad("the times of waiting interpreters must not be 0, but for refill_delay");
        }
        if first_backoff > longest_backoff {
            return bad("first_backoff must not exceed longest_backoff");
        }
        Ok(())
    }
}

/// When interpreters are made, replaced and looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InterpreterTimes {
    /// How long a refill waits after one was taken: what was taken has work to do now. Default 20 ms.
    #[serde(with = "serde_duration")]
    pub refill_delay: Duration,
    /// How long one waits before it is replaced. Default 10 min.
    #[serde(with = "serde_duration")]
    pub max_age: Duration,
    /// How long making one may take, sandbox and warm-up together. Default 120 s.
    #[serde(with = "serde_duration")]
    pub make_timeout: Duration,
    /// The wait after the first failure; it doubles with each further one. Default 1 s.
    #[serde(with = "serde_duration")]
    pub first_backoff: Duration,
    /// The longest wait after failures. Default 5 min.
    #[serde(with = "serde_duration")]
    pub longest_backoff: Duration,
    /// How often those that wait are looked at, whether they are alive still. Default 5 s.
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
            longest_backoff: Duration::from_secs(300),
            check_every: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let kept = |ready| KeptInterpreter { name: "python".into(), interpreter: InterpreterConfig::python(), ready };
        assert!(InterpretersConfig::new([kept(1)]).validate().is_ok());
        assert!(InterpretersConfig::new([kept(65)]).validate().is_err());
        assert!(InterpretersConfig::new((0..17).map(|_| kept(1))).validate().is_err());
        let times = |times| InterpretersConfig { times, ..InterpretersConfig::new([]) };
        let default = InterpreterTimes::default;
        assert!(times(InterpreterTimes { max_age: Duration::ZERO, ..default() }).validate().is_err());
        assert!(times(InterpreterTimes { first_backoff: Duration::from_secs(900), ..default() }).validate().is_err());
    }
}

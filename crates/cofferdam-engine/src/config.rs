//! The configuration of a pool.

use std::time::Duration;

use cofferdam_contract::{Error, Result, serde_duration};
use serde::{Deserialize, Serialize};

/// The configuration of a [`crate::Pool`]. Every count, wait and queue is bounded. The defaults suit a laptop or a
/// small server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Minimum number of idle prepared sandboxes. With 0 the pool prepares none until claims find it empty. Default: 2.
    pub min_warm: usize,
    /// Maximum number of idle prepared sandboxes. The pool grows towards it when claims find no idle sandbox, and
    /// shrinks when claims stop. `max` takes precedence if it is smaller. Default: 8.
    pub max_warm: usize,
    /// Maximum number of live sandboxes: idle, claimed, being created and being closed. Default: 32.
    pub max: usize,
    /// Time after which an idle sandbox beyond `min_warm` is destroyed. Default: 60 s.
    #[serde(with = "serde_duration")]
    pub idle_time: Duration,
    /// Time after which any idle sandbox is replaced by a new one. Default: 10 min.
    #[serde(with = "serde_duration")]
    pub max_age: Duration,
    /// Timeout of a claim, from the call until the sandbox is available. Default: 30 s.
    #[serde(with = "serde_duration")]
    pub claim_timeout: Duration,
    /// Timeout of the backend's creation of one sandbox. Default: 60 s.
    #[serde(with = "serde_duration")]
    pub make_timeout: Duration,
    /// Time that [`crate::Pool::shutdown`] waits for closes after its deadline. Default: 30 s.
    #[serde(with = "serde_duration")]
    pub close_timeout: Duration,
    /// Maximum number of queued claims of all tenants together. Default: 256.
    pub max_waiting: usize,
    /// Maximum number of queued claims of one tenant. Default: 64.
    pub max_waiting_per_tenant: usize,
    /// Maximum number of sandboxes that are prepared at the same time. Default: 1.
    pub refill_at_once: usize,
    /// Delay of a refill after a claim while other sandboxes are idle. Creating the next sandbox immediately would
    /// compete for the processors with the claimed one. Default: 5 ms.
    #[serde(with = "serde_duration")]
    pub refill_delay: Duration,
    /// The longest time that a refill yields to claims and to creates with waiting callers. After it, the refill runs
    /// beside them. Default: 50 ms.
    #[serde(with = "serde_duration")]
    pub refill_yield_timeout: Duration,
    /// Backoff after the first failed refill. It doubles with each further failure. Default: 100 ms.
    #[serde(with = "serde_duration")]
    pub first_backoff: Duration,
    /// Maximum backoff after failed refills. Default: 30 s.
    #[serde(with = "serde_duration")]
    pub max_backoff: Duration,
    /// Interval between two health checks of idle sandboxes. Default: 5 s.
    #[serde(with = "serde_duration")]
    pub check_every: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            min_warm: 2,
            max_warm: 8,
            max: 32,
            idle_time: Duration::from_secs(60),
            max_age: Duration::from_secs(600),
            claim_timeout: Duration::from_secs(30),
            make_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(30),
            max_waiting: 256,
            max_waiting_per_tenant: 64,
            refill_at_once: 1,
            refill_delay: Duration::from_millis(5),
            refill_yield_timeout: Duration::from_millis(50),
            first_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(30),
            check_every: Duration::from_secs(5),
        }
    }
}

impl PoolConfig {
    /// The greatest value of [`PoolConfig::max`].
    pub const MAX_SANDBOXES: usize = 65_536;

    /// Checks the configuration.
    ///
    /// # Errors
    /// - `InvalidInput` for values that contradict each other, and for 0 where a pool would serve no claim.
    pub fn validate(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::invalid("configure", message));
        if self.max == 0 || self.max > Self::MAX_SANDBOXES {
            return bad("a pool's max must be between 1 and 65536");
        }
        if self.min_warm > self.max_warm || self.min_warm > self.max {
            return bad("a pool's min_warm must not exceed its max_warm or its max");
        }
        if self.refill_at_once == 0 {
            return bad("a pool's refill_at_once must not be 0; to prepare no sandboxes, set max_warm to 0");
        }
        if self.first_backoff > self.max_backoff {
            return bad("a pool's first_backoff must not exceed its max_backoff");
        }
        let times = [
            self.idle_time,
            self.max_age,
            self.claim_timeout,
            self.make_timeout,
            self.close_timeout,
            self.first_backoff,
            self.check_every,
        ];
        if times.iter().any(Duration::is_zero) {
            return bad("a pool's times must not be 0, except refill_delay and refill_yield_timeout");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        assert!(PoolConfig::default().validate().is_ok());
        let config = PoolConfig::default;
        for bad in [
            PoolConfig { max: 0, min_warm: 0, max_warm: 0, ..config() },
            PoolConfig { max: 1 << 20, ..config() },
            PoolConfig { min_warm: 9, ..config() },
            PoolConfig { min_warm: 5, max: 4, ..config() },
            PoolConfig { refill_at_once: 0, ..config() },
            PoolConfig { claim_timeout: Duration::ZERO, ..config() },
            PoolConfig { check_every: Duration::ZERO, ..config() },
            PoolConfig { first_backoff: Duration::from_secs(31), ..config() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn it_is_read_as_people_write_it() {
        let config: PoolConfig = serde_json::from_str(r#"{"min_warm":4,"idle_time":"5m"}"#).unwrap();
        assert_eq!(config, PoolConfig { min_warm: 4, idle_time: Duration::from_secs(300), ..PoolConfig::default() });
        assert!(serde_json::from_str::<PoolConfig>(r#"{"minwarm":4}"#).is_err());
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<PoolConfig>(&text).unwrap(), config);
    }
}

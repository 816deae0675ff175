//! How a pool is set up.

use std::time::Duration;

use cofferdam_contract::{Error, Result, serde_duration};
use serde::{Deserialize, Serialize};

/// The most sandboxes that one pool may be asked to hold.
const MAX_SANDBOXES: usize = 65_536;

/// How a [`crate::Pool`] is set up. Every count, wait and queue has a bound; the defaults suit a laptop and a small
/// server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Sandboxes kept ready, unclaimed. Default 2; with 0 none is made ahead, and the pool only bounds and queues.
    pub min_warm: usize,
    /// Sandboxes kept ready at most: the pool goes up to this when claims find it empty, and back when they stop.
    /// Default 8; where `max` is less, that holds.
    pub max_warm: usize,
    /// Sandboxes alive at most: ready, claimed, being made and being closed together. Default 32.
    pub max: usize,
    /// How long one beyond `min_warm` waits unclaimed before it is destroyed. Default 60 s.
    #[serde(with = "serde_duration")]
    pub idle_time: Duration,
    /// How long any waits unclaimed before it is replaced by a fresh one. Default 10 min.
    #[serde(with = "serde_duration")]
    pub max_age: Duration,
    /// How long a claim may take, from its call to its sandbox. Default 30 s.
    #[serde(with = "serde_duration")]
    pub claim_timeout: Duration,
    /// How long the backend may take to make one sandbox. Default 60 s.
    #[serde(with = "serde_duration")]
    pub make_timeout: Duration,
    /// How long [`crate::Pool::shutdown`] waits for closes after its deadline. Default 30 s.
    #[serde(with = "serde_duration")]
    pub close_timeout: Duration,
    /// Claims that may wait for a place, of all tenants together. Default 256.
    pub max_waiting: usize,
    /// Claims of one tenant that may wait for a place. Default 64.
    pub max_waiting_per_tenant: usize,
    /// Sandboxes made ahead at the same time. Default 1.
    pub refill_at_once: usize,
    /// How long a refill waits after a claim, while others are ready: what was claimed has work to do now, and making the
    /// next one would compete with it. Default 5 ms.
    #[serde(with = "serde_duration")]
    pub refill_delay: Duration,
    /// How long a refill gives way to claims and to creates that callers wait for before it goes on beside them. Default 50 ms.
    #[serde(with = "serde_duration")]
    pub refill_patience: Duration,
    /// The wait after the first failed refill; it doubles with each further one. Default 100 ms.
    #[serde(with = "serde_duration")]
    pub first_backoff: Duration,
    /// The longest wait after failed refills. Default 30 s.
    #[serde(with = "serde_duration")]
    pub longest_backoff: Duration,
    /// How often those that wait are looked at, whether they are alive still. Default 5 s.
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
            refill_patience: Duration::from_millis(50),
            first_backoff: Duration::from_millis(100),
            longest_backoff: Duration::from_secs(30),
            check_every: Duration::from_secs(5),
        }
    }
}

impl PoolConfig {
    /// Refuses what contradicts itself, or would let nothing through.
    pub fn validate(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::invalid("configure", message));
        if self.max == 0 || self.max > MAX_SANDBOXES {
            return bad("a pool's max must be 1 to 65536");
        }
        if self.min_warm > self.max_warm || self.min_warm > self.max {
            return bad("a pool's min_warm must exceed neither its max_warm nor its max");
        }
        if self.refill_at_once == 0 {
            return bad("with a refill_at_once of 0 a pool is never filled; for none made ahead set max_warm to 0");
        }
        if self.first_backoff > self.longest_backoff {
            return bad("a pool's first_backoff must not exceed its longest_backoff");
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
            return bad("a pool's times must not be 0, but for refill_patience");
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

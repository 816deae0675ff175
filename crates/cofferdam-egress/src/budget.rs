//! Budgets and rates of a rule.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, NetworkRule, Result};
use parking_lot::Mutex;

use crate::rules::Refusal;

/// The highest rate of requests that a rule may have. Each takes a few bytes of memory.
const MAX_PER_MINUTE: u32 = 10_000;
const MINUTE: Duration = Duration::from_secs(60);

/// The number and size of what a rule allows, and the part that is used.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    requests: AtomicU64,
    bytes: AtomicU64,
    /// The times of the requests of the last minute.
    last: Mutex<VecDeque<Instant>>,
    /// The time until which the bytes so far take at the rule's rate.
    due: Mutex<Option<Instant>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Limits {
    requests: Option<u64>,
    bytes: Option<u64>,
    per_minute: Option<u32>,
    per_second: Option<u64>,
}

impl Budget {
    /// Checks the limits of a rule.
    pub fn check(rule: &NetworkRule) -> Result<()> {
        let limits = Limits::of(rule);
        let zero =
            [limits.requests, limits.bytes, limits.per_minute.map(u64::from), limits.per_second].contains(&Some(0));
        let what = match limits.per_minute.is_some_and(|rate| rate > MAX_PER_MINUTE) {
            true => format!("a rule allows at most {MAX_PER_MINUTE} requests a minute"),
            false if zero => "a budget or rate of a rule must be above 0".to_owned(),
            false => return Ok(()),
        };
        Err(Error::invalid("create", what).with_context("host", rule.host.clone()))
    }

    /// Creates a budget of which nothing is used.
    pub fn new(rule: &NetworkRule) -> Self {
        let (requests, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { limits: Limits::of(rule), requests, bytes, last: Mutex::default(), due: Mutex::default() }
    }

    /// Returns true if both have the same limits.
    pub fn has_limits_of(&self, other: &Self) -> bool {
        self.limits == other.limits
    }

    /// Returns true if there is any limit.
    pub fn is_limited(&self) -> bool {
        self.limits != Limits { requests: None, bytes: None, per_minute: None, per_second: None }
    }

    /// Counts a request, or a connection. Refuses it if the budget does not have it.
    pub fn request(&self, now: Instant) -> std::result::Result<(), Refusal> {
        if self.limits.bytes.is_some_and(|most| self.bytes.load(Ordering::Relaxed) >= most) {
            return Err(Refusal::UsedUp);
        }
        if let Some(rate) = self.limits.per_minute {
            let mut last = self.last.lock();
            while last.front().is_some_and(|time| now.saturating_duration_since(*time) >= MINUTE) {
                last.pop_front();
            }
            if last.len() >= rate as usize {
                return Err(Refusal::TooFast);
            }
            last.push_back(now);
        }
        let most = self.limits.requests.unwrap_or(u64::MAX);
        let more = |count: u64| (count < most).then_some(count + 1);
        self.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| Refusal::UsedUp)?;
        Ok(())
    }

    /// Returns the time that bytes so far take at the rule's rate.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let due = *self.due.lock();
        due.map(|due| due.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Returns true if bytes are limited.
    pub fn limits_bytes(&self) -> bool {
        self.limits.bytes.is_some() || self.limits.per_second.is_some()
    }

    /// Counts bytes. Returns the time to wait before the next ones. Refuses bytes beyond the budget.
    pub fn charge(&self, bytes: u64, now: Instant) -> std::result::Result<Option<Duration>, Refusal> {
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if self.limits.bytes.is_some_and(|most| total > most) {
            return Err(Refusal::UsedUp);
        }
        let Some(rate) = self.limits.per_second else { return Ok(None) };
        let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut due = self.due.lock();
        let until = due.map_or(now, |due| due.max(now)) + time;
        *due = Some(until);
        Ok(Some(until.saturating_duration_since(now)).filter(|wait| !wait.is_zero()))
    }
}

impl Limits {
    fn of(rule: &NetworkRule) -> Self {
        Self {
            requests: rule.max_requests,
            bytes: rule.max_bytes.map(|size| size.as_bytes()),
            per_minute: rule.requests_per_minute,
            per_second: rule.bytes_per_second.map(|size| size.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::ByteSize;

    use super::*;

    /// Promise (Network): Budgets and rates of a rule hold.
    #[test]
    fn budgets_and_rates_hold() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let rule = NetworkRule {
            max_requests: Some(3),
            requests_per_minute: Some(2),
            max_bytes: Some(ByteSize::from_bytes(100)),
            bytes_per_second: Some(ByteSize::from_bytes(10)),
            ..NetworkRule::default()
        };
        let budget = Budget::new(&rule);
        assert_eq!(budget.request(now), Ok(()));
        assert_eq!(budget.request(now + second), Ok(()));
        assert_eq!(budget.request(now + 59 * second), Err(Refusal::TooFast));
        assert_eq!(budget.request(now + 60 * second), Ok(()));
        assert_eq!(budget.request(now + 200 * second), Err(Refusal::UsedUp));
        assert_eq!(budget.charge(50, now), Ok(Some(5 * second)));
        assert_eq!(budget.charge(50, now + second), Ok(Some(9 * second)));
        assert_eq!(budget.charge(1, now + 20 * second), Err(Refusal::UsedUp));
        assert_eq!(Budget::new(&rule).request(now), Ok(()));
    }
}

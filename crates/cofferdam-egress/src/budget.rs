//! Budgets and rates of a rule.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, ready};
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
    /// The bytes that are used. Connections of the rule take turns while they pass bytes.
    bytes: Mutex<u64>,
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
        let requests = AtomicU64::new(0);
        Self {
            limits: Limits::of(rule),
            requests,
            bytes: Mutex::default(),
            last: Mutex::default(),
            due: Mutex::default(),
        }
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
        if self.limits.bytes.is_some_and(|max| *self.bytes.lock() >= max) {
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
        let max = self.limits.requests.unwrap_or(u64::MAX);
        let more = |count: u64| (count < max).then_some(count + 1);
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

    /// Counts bytes that were read before their rule was known. Refuses all of them if the budget does not have them.
    pub fn charge(&self, bytes: u64, now: Instant) -> std::result::Result<(), Refusal> {
        let mut used = self.bytes.lock();
        let total = used.saturating_add(bytes);
        if self.limits.bytes.is_some_and(|max| total > max) {
            return Err(Refusal::UsedUp);
        }
        *used = total;
        self.delay(bytes, now);
        Ok(())
    }

    /// Passes bytes by a read or write, and counts them. `pass` gets the maximum number, and returns the number that
    /// passed. No other connection passes bytes of a limited budget meanwhile, so that all together never exceed it.
    pub fn pass(&self, now: Instant, pass: impl FnOnce(usize) -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let passed = match self.limits.bytes {
            None => ready!(pass(usize::MAX))?,
            Some(max) => {
                let mut used = self.bytes.lock();
                let left = usize::try_from(max.saturating_sub(*used)).unwrap_or(usize::MAX);
                let passed = ready!(pass(left))?;
                *used = used.saturating_add(passed as u64);
                passed
            }
        };
        self.delay(passed as u64, now);
        Poll::Ready(Ok(passed))
    }

    /// Delays the next bytes by the time that these take at the rule's rate.
    fn delay(&self, bytes: u64, now: Instant) {
        if let Some(rate) = self.limits.per_second {
            let mut due = self.due.lock();
            *due = Some(due.map_or(now, |due| due.max(now)) + Duration::from_secs_f64(bytes as f64 / rate as f64));
        }
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
        assert_eq!((budget.charge(50, now), budget.wait(now)), (Ok(()), Some(5 * second)));
        assert_eq!(budget.charge(51, now), Err(Refusal::UsedUp), "bytes are refused as a whole");
        assert_eq!(budget.charge(50, now + second), Ok(()));
        assert_eq!(budget.wait(now + second), Some(9 * second));
        assert_eq!(budget.charge(1, now + 20 * second), Err(Refusal::UsedUp));
        assert_eq!(Budget::new(&rule).request(now), Ok(()));
    }

    /// A read or write gets the bytes that are left, and those that it does not pass stay in the budget.
    #[test]
    fn bytes_that_do_not_pass_stay_in_the_budget() {
        let rule = NetworkRule { max_bytes: Some(ByteSize::from_bytes(100)), ..NetworkRule::default() };
        let (budget, now) = (Budget::new(&rule), Instant::now());
        for (left, passed) in [
            (100, Poll::Ready(Ok(40))),
            (60, Poll::Pending),
            (60, Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))),
            (60, Poll::Ready(Ok(60))),
            (0, Poll::Ready(Ok(0))),
        ] {
            let _ = budget.pass(now, |max| {
                assert_eq!(max, left);
                passed
            });
        }
        assert_eq!(budget.request(now), Err(Refusal::UsedUp));
        let unlimited = Budget::new(&NetworkRule::default());
        assert!(unlimited.pass(now, |max| Poll::Ready(Ok(max))).is_ready());
    }
}

//! A token bucket: a rate with bursts of one second.

use std::time::Duration;

/// Parts of a token.
const PARTS: u64 = 1_000_000_000;

/// A token bucket. Times count from any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    rate: u32,
    /// Parts of tokens that are there.
    parts: u64,
    at: Duration,
}

impl Bucket {
    /// Creates a full bucket for `rate` tokens in a second, at least 1.
    pub fn new(rate: u32, now: Duration) -> Self {
        let rate = rate.max(1);
        Self { rate, parts: u64::from(rate) * PARTS, at: now }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// Returns the time until there is one.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        if let Some(left) = self.parts.checked_sub(PARTS) {
            self.parts = left;
            return Ok(());
        }
        Err(Duration::from_nanos((PARTS - self.parts).div_ceil(u64::from(self.rate))))
    }

    /// Changes the rate. Tokens beyond the new one are lost.
    pub fn set_rate(&mut self, rate: u32, now: Duration) {
        self.fill(now);
        self.rate = rate.max(1);
        self.parts = self.parts.min(u64::from(self.rate) * PARTS);
    }

    /// Returns true if the bucket is full, so that a new one is the same.
    pub fn is_full(&mut self, now: Duration) -> bool {
        self.fill(now);
        self.parts == u64::from(self.rate) * PARTS
    }

    fn fill(&mut self, now: Duration) {
        let nanos = u64::try_from(now.saturating_sub(self.at).as_nanos()).unwrap_or(u64::MAX);
        let max = u64::from(self.rate) * PARTS;
        // A token is 10^9 parts, and a second 10^9 nanoseconds.
        self.parts = self.parts.saturating_add(nanos.saturating_mul(u64::from(self.rate))).min(max);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_is_one_second_and_then_the_rate_holds() {
        let start = Duration::from_secs(7);
        let mut bucket = Bucket::new(4, start);
        for _ in 0..4 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        let wait = bucket.take(start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(250));
        assert!(bucket.take(start + wait - Duration::from_nanos(1)).is_err());
        assert_eq!(bucket.take(start + wait), Ok(()));
        assert!(!bucket.is_full(start + wait) && bucket.is_full(start + Duration::from_secs(60)));
    }

    proptest! {
        /// Promise (Server): A rate is never exceeded by more than one second's burst, and a wait that is reported is
        /// enough.
        #[test]
        fn the_rate_holds(rate in 1u32..50, pauses in prop::collection::vec(0u64..400, 1..200)) {
            let mut bucket = Bucket::new(rate, Duration::ZERO);
            let (mut now, mut taken) = (Duration::ZERO, 0u64);
            for pause in pauses {
                now += Duration::from_millis(pause);
                match bucket.take(now) {
                    Ok(()) => taken += 1,
                    Err(wait) => prop_assert_eq!(bucket.clone().take(now + wait), Ok(())),
                }
                prop_assert!(taken <= u64::from(rate) + now.as_millis() as u64 * u64::from(rate) / 1000 + 1);
            }
        }
    }
}

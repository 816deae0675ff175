//! Exponential backoff after failures. Pure: the caller supplies time and randomness.

use std::time::Duration;

/// An exponential backoff with jitter.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Option<Duration>,
}

impl Backoff {
    /// Records a failure at `now`. `chance`, from 0 to 1, spreads the wait over its upper half, so that pools that
    /// failed together do not retry together.
    pub(crate) fn failed(&mut self, now: Duration, first: Duration, longest: Duration, chance: f64) {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let whole = first.saturating_mul(factor).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + whole.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0)));
    }

    /// Records a success.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the last attempt failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns the time of the next attempt, if that is later than `now`.
    pub(crate) fn wait_until(&self, now: Duration) -> Option<Duration> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(2));
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..7)
            .map(|_| {
                backoff.failed(Duration::ZERO, first, longest, 1.0);
                backoff.wait_until(Duration::ZERO).unwrap().as_millis()
            })
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        backoff.succeeded();
        assert!(!backoff.is_failing() && backoff.wait_until(Duration::ZERO).is_none());
    }

    proptest! {
        #[test]
        fn a_wait_is_half_to_whole(failures in 0u32..100, chance in 0.0f64..=1.0, now in 0u64..1 << 40) {
            let (now, first, longest) = (Duration::from_millis(now), Duration::from_millis(7), Duration::from_secs(9));
            let mut backoff = Backoff { failures, until: None };
            backoff.failed(now, first, longest, chance);
            let wait = backoff.wait_until(now).unwrap() - now;
            let whole = first.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(longest);
            // One nanosecond of tolerance for rounding.
            prop_assert!(wait + Duration::from_nanos(1) >= whole / 2 && wait <= whole + Duration::from_nanos(1));
        }
    }
}

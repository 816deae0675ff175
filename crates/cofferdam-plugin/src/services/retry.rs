//! Repeated deliveries, with a pause that doubles after each failure.

use std::sync::Arc;
use std::time::Duration;

use super::{Deliver, Delivery};

/// The attempts of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The maximum number of attempts.
    pub attempts: u32,
    /// The pause after the first failure.
    pub first: Duration,
    /// The maximum pause.
    pub longest: Duration,
    /// The maximum time of an attempt.
    pub timeout: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 10,
            first: Duration::from_millis(100),
            longest: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
        }
    }
}

impl Retry {
    /// Returns the pause after the failure of an attempt, which counts from 1.
    fn pause(self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Delivers until an attempt succeeds. Returns false if none did.
    pub(super) async fn deliver(self, deliver: &Arc<dyn Deliver>, request: impl Fn(u32) -> Delivery + Send) -> bool {
        for attempt in 1..=self.attempts {
            let answer = tokio::time::timeout(self.timeout, deliver.deliver(request(attempt))).await;
            if matches!(answer, Ok(Ok(()))) {
                return true;
            }
            if attempt < self.attempts {
                tokio::time::sleep(self.pause(attempt)).await;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry::default();
        let pauses: Vec<u128> = [1, 2, 3, 9, 10, 32, 33, 64].map(|attempt| retry.pause(attempt).as_millis()).to_vec();
        assert_eq!(pauses, [100, 200, 400, 25_600, 30_000, 30_000, 30_000, 30_000]);
    }
}

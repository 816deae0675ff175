//! The pace at which connections are accepted, queries answered and requests reported.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The average interval, and the number that is served at once after a pause.
const CONNECTIONS: (Duration, u32) = (Duration::from_millis(5), 128);
const QUERIES: (Duration, u32) = (Duration::from_millis(1), 512);
const REPORTS: (Duration, u32) = (Duration::from_millis(10), 512);

/// The pace of one socket. A guest that floods it must not keep this process from its other work.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    burst: Duration,
    due: Instant,
}

impl Pace {
    /// Creates the pace of accepting connections.
    pub fn of_connections() -> Self {
        Self::new(CONNECTIONS)
    }

    /// Creates the pace of answering queries.
    pub fn of_queries() -> Self {
        Self::new(QUERIES)
    }

    /// Creates the pace of reporting requests.
    pub fn of_reports() -> Self {
        Self::new(REPORTS)
    }

    fn new((interval, burst): (Duration, u32)) -> Self {
        let burst = interval * burst;
        Self { interval, burst, due: earliest(burst) }
    }

    /// Takes a turn without waiting. Returns false if it is not due yet.
    pub fn try_turn(&mut self) -> bool {
        let due = self.due.max(earliest(self.burst)) + self.interval;
        let is_due = due <= Instant::now();
        if is_due {
            self.due = due;
        }
        is_due
    }

    /// Waits until the next turn. Unused time is credit for a burst.
    pub async fn turn(&mut self) {
        self.due = self.due.max(earliest(self.burst)) + self.interval;
        match self.due > Instant::now() {
            true => sleep_until(self.due).await,
            false => tokio::task::yield_now().await,
        }
    }
}

fn earliest(burst: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(burst).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_before_their_time_are_not_taken() {
        tokio::time::advance(Duration::from_secs(60)).await;
        let mut pace = Pace::of_reports();
        let mut taken = || (0..10_000).filter(|_| pace.try_turn()).count();
        assert_eq!(taken(), REPORTS.1 as usize);
        tokio::time::advance(REPORTS.0 * 7).await;
        assert_eq!(taken(), 7);
    }
}

//! The pace at which connections are accepted and queries are answered.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The average interval, and the number that is served at once after a pause.
const CONNECTIONS: (Duration, u32) = (Duration::from_millis(5), 128);
const QUERIES: (Duration, u32) = (Duration::from_millis(1), 512);

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

    fn new((interval, burst): (Duration, u32)) -> Self {
        let burst = interval * burst;
        Self { interval, burst, due: earliest(burst) }
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

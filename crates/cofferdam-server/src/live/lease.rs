//! The time that a sandbox has left, as a pure value.
//!
//! ```text
//! live --(use | exec runs)--> live --(no use for `idle` | `ends` passes)--> over
//! ```

use std::time::Duration;

use tokio::time::Instant;

/// The time that a sandbox has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The end of its life.
    pub ends: Instant,
    /// The time without use after which it ends.
    pub idle: Duration,
    /// The time of the last use.
    pub used: Instant,
}

impl Lease {
    /// Returns true if the sandbox has no time left. `busy` is true while an exec runs or a client is connected, which
    /// is use, but prolongs no life.
    pub fn is_over(&self, now: Instant, busy: bool) -> bool {
        now >= self.ends || (!busy && now >= self.used + self.idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_stops_while_busy_and_life_time_does_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let lease = Lease { ends: at(100), idle: Duration::from_secs(10), used: at(5) };
        for (now, busy, over) in
            [(14, false, false), (15, false, true), (15, true, false), (99, true, false), (100, true, true)]
        {
            assert_eq!(lease.is_over(at(now), busy), over, "{now} {busy}");
        }
    }
}

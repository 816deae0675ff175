//! What a pool tells about itself: counts and times, a snapshot that can be serialised.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Upper bounds of the histograms' buckets, in microseconds; one more bucket takes what lies above.
const BOUNDS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000,
];

/// How a claim came to its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ClaimKind {
    /// One that waited.
    Warm,
    /// Made for it: some waited, but its spec fitted none.
    ColdUnfit,
    /// Made for it: none waited.
    ColdEmpty,
    /// Made for it: the one that waited failed at the claim.
    ColdReplaced,
    /// A snapshot restored, or a fork.
    Copy,
}

/// Claims that were given a sandbox, by [`ClaimKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClaimCounts {
    /// See [`ClaimKind::Warm`].
    pub warm: u64,
    /// See [`ClaimKind::ColdUnfit`].
    pub cold_unfit: u64,
    /// See [`ClaimKind::ColdEmpty`].
    pub cold_empty: u64,
    /// See [`ClaimKind::ColdReplaced`].
    pub cold_replaced: u64,
    /// See [`ClaimKind::Copy`].
    pub copy: u64,
}

impl ClaimCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Self { warm, cold_unfit, cold_empty, cold_replaced, copy } = self;
        warm + cold_unfit + cold_empty + cold_replaced + copy
    }

    fn add(&mut self, kind: ClaimKind) {
        *match kind {
            ClaimKind::Warm => &mut self.warm,
            ClaimKind::ColdUnfit => &mut self.cold_unfit,
            ClaimKind::ColdEmpty => &mut self.cold_empty,
            ClaimKind::ColdReplaced => &mut self.cold_replaced,
            ClaimKind::Copy => &mut self.copy,
        } += 1;
    }
}

/// How often times of which length were seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds of the buckets, in microseconds, rising.
    pub bounds_micros: Vec<u64>,
    /// Times up to each bound and above the one before; the last bucket has no bound.
    pub counts: Vec<u64>,
    /// Sum of all times, in seconds.
    pub sum_seconds: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { bounds_micros: BOUNDS.to_vec(), counts: vec![0; BOUNDS.len() + 1], sum_seconds: 0.0 }
    }
}

impl Histogram {
    /// How many times were seen.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.bounds_micros.partition_point(|bound| *bound < micros);
        self.counts[bucket] += 1;
        self.sum_seconds += time.as_secs_f64();
    }
}

/// How a pool stands now, and what happened since it was made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PoolMetrics {
    /// Sandboxes that wait for a claim.
    pub warm: usize,
    /// Sandboxes that are claimed and not closed.
    pub claimed: usize,
    /// Sandboxes being made: for claims, and ahead of them.
    pub making: usize,
    /// Sandboxes being closed.
    pub closing: usize,
    /// Claims that wait for a place.
    pub waiting: usize,
    /// Claims that were given a sandbox.
    pub claims: ClaimCounts,
    /// Claims that were refused because a queue was full.
    pub refused: u64,
    /// Claims that waited too long.
    pub timed_out: u64,
    /// Claims for which making the sandbox failed.
    pub failures: u64,
    /// Sandboxes made ahead.
    pub refills: u64,
    /// Sandboxes that could not be made ahead.
    pub refill_failures: u64,
    /// Why the last refill failed; `None` once one has succeeded again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_error: Option<String>,
    /// Sandboxes destroyed unclaimed, because they were too many or too old.
    pub expired: u64,
    /// Sandboxes destroyed unclaimed, to make room for a claim that they did not fit.
    pub evicted: u64,
    /// Sandboxes that died while they waited.
    pub died: u64,
    /// Closes that failed.
    pub close_failures: u64,
    /// From a claim's call until it had a place.
    pub wait_time: Histogram,
    /// From a claim's call until it had its sandbox.
    pub claim_time: Histogram,
}

impl PoolMetrics {
    /// Counts a claim that was given its sandbox.
    pub(crate) fn claimed(&mut self, kind: ClaimKind, time: Duration) {
        self.claims.add(kind);
        self.claim_time.add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_their_buckets() {
        let mut histogram = Histogram::default();
        for micros in [0, 50, 51, 100, 1_000, 30_000_000, 30_000_001, u64::MAX] {
            histogram.add(Duration::from_micros(micros));
        }
        let filled: Vec<(usize, u64)> = histogram.counts.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        assert_eq!(filled, [(0, 2), (1, 2), (4, 1), (17, 1), (18, 2)]);
        assert_eq!(histogram.count(), 8);
    }

    #[test]
    fn a_snapshot_round_trips() {
        let mut metrics = PoolMetrics::default();
        metrics.claimed(ClaimKind::Warm, Duration::from_micros(70));
        let text = serde_json::to_string(&metrics).unwrap();
        assert!(text.contains(r#""claims":{"warm":1,"#), "{text}");
        assert_eq!(serde_json::from_str::<PoolMetrics>(&text).unwrap(), metrics);
        assert_eq!(metrics.claims.total(), 1);
    }
}

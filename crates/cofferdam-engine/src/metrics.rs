//! Metrics of a pool: counts and times as a serializable snapshot.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Upper bounds of the histograms' buckets, in microseconds. A final bucket holds greater values.
const BOUNDS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000,
];

/// The way in which a claim got its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ClaimKind {
    /// An idle prepared sandbox was claimed.
    Warm,
    /// The sandbox was created on request, because no idle sandbox was compatible with the spec.
    ColdUnfit,
    /// The sandbox was created on request, because none was idle.
    ColdEmpty,
    /// The sandbox was created on request, because claiming an idle one failed.
    ColdReplaced,
    /// The sandbox was restored from a snapshot or forked.
    Copy,
}

/// Numbers of successful claims, by [`ClaimKind`].
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
    /// Returns the number of all successful claims.
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

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds of the buckets, in microseconds, ascending.
    pub bounds_micros: Vec<u64>,
    /// Number of durations in each bucket: up to its bound and above the previous bound. The last bucket has no bound.
    pub counts: Vec<u64>,
    /// Sum of all durations, in seconds.
    pub sum_seconds: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { bounds_micros: BOUNDS.to_vec(), counts: vec![0; BOUNDS.len() + 1], sum_seconds: 0.0 }
    }
}

impl Histogram {
    /// Returns the number of durations.
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

/// The current state of a pool and its counters since creation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PoolMetrics {
    /// Number of idle prepared sandboxes.
    pub warm: usize,
    /// Number of idle prepared sandboxes that the pool refills to now.
    pub target: usize,
    /// Number of sandboxes being prepared, which `making` counts too.
    pub refilling: usize,
    /// Number of sandboxes that are claimed and not closed.
    pub claimed: usize,
    /// Number of sandboxes being created, for claims and for refills.
    pub making: usize,
    /// Number of sandboxes being closed.
    pub closing: usize,
    /// Number of queued claims.
    pub waiting: usize,
    /// Numbers of successful claims.
    pub claims: ClaimCounts,
    /// Number of claims rejected because a queue was full.
    pub refused: u64,
    /// Number of claims that timed out.
    pub timed_out: u64,
    /// Number of claims for which the creation of the sandbox failed.
    pub failures: u64,
    /// Number of successful refills.
    pub refills: u64,
    /// Number of failed refills.
    pub refill_failures: u64,
    /// The error of the last refill; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_error: Option<String>,
    /// Number of idle sandboxes destroyed because they were surplus or too old.
    pub expired: u64,
    /// Number of idle sandboxes destroyed to free a slot for a claim that none of them was compatible with.
    pub evicted: u64,
    /// Number of idle sandboxes that died.
    pub died: u64,
    /// Number of closes that failed.
    pub close_failures: u64,
    /// Time from the call of a claim until it got a slot.
    pub wait_time: Histogram,
    /// Time from the call of a claim until it got its sandbox.
    pub claim_time: Histogram,
}

impl PoolMetrics {
    /// Counts a successful claim.
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

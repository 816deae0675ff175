//! Samples of times, and their statistics.

use std::time::Duration;

use serde_json::{Value, json};

/// Times of one kind, sorted.
#[derive(Debug, Clone, Default)]
pub struct Sample(Vec<Duration>);

impl Sample {
    /// Creates a sample of these times.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// Returns the number of times.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the median, in microseconds.
    pub fn median(&self) -> f64 {
        self.per_mille(500)
    }

    /// Returns the 99th percentile, in microseconds.
    pub fn p99(&self) -> f64 {
        self.per_mille(990)
    }

    /// Returns the 99.9th percentile, in microseconds.
    pub fn p999(&self) -> f64 {
        self.per_mille(999)
    }

    /// Returns the smallest time that at least so many thousandths of all times do not exceed (nearest rank).
    fn per_mille(&self, share: usize) -> f64 {
        let rank = (self.0.len() * share).div_ceil(1000).max(1);
        self.0.get(rank - 1).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }

    /// Returns the statistics as JSON, in microseconds.
    pub fn json(&self) -> Value {
        json!({ "n": self.len(), "median_us": tenths(self.median()), "p99_us": tenths(self.p99()) })
    }
}

/// Rounds to a hundredth.
pub fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Rounds to a tenth.
pub fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let sample = Sample::new((1..=100).rev().map(Duration::from_micros).collect());
        assert_eq!((sample.median().round(), sample.p99().round(), sample.len()), (50.0, 99.0, 100));
        assert_eq!(sample.p999().round(), 100.0);
        assert!(Sample::default().median().is_nan());
        assert_eq!(Sample::new(vec![Duration::from_micros(7)]).p99().round(), 7.0);
    }
}

//! The processor's time-stamp counter.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The duration of a measurement, and the number of measurements.
const SAMPLE_TIME: Duration = Duration::from_millis(10);
const SAMPLES: usize = 3;

/// Returns the ticks per millisecond of the time-stamp counter, measured once. Returns `None` if there is no counter,
/// or if it cannot be measured.
pub fn ticks_per_millisecond() -> Option<u64> {
    static MEASURED: OnceLock<Option<u64>> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let mut all: Vec<u64> = (0..SAMPLES).filter_map(|_| measure()).collect();
        all.sort_unstable();
        // Measurements that were interrupted between clock and counter are at either end.
        all.get(all.len() / 2).copied().filter(|ticks| (100_000..20_000_000).contains(ticks))
    })
}

fn measure() -> Option<u64> {
    let (begun, first) = (Instant::now(), counter()?);
    std::thread::sleep(SAMPLE_TIME);
    let (passed, last) = (begun.elapsed(), counter()?);
    let ticks = u128::from(last.checked_sub(first)?) * 1_000_000;
    u64::try_from(ticks.checked_div(passed.as_nanos())?).ok()
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: every processor of this architecture has the counter, and reading it changes nothing. A kernel may forbid
    // it by a signal, but does so only for a process that requested it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_counts_as_fast_as_before() {
        let Some(known) = ticks_per_millisecond() else { return };
        let again = measure().unwrap();
        assert!(again.abs_diff(known) < known / 4, "{again} against {known}");
    }
}

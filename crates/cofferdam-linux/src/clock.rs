//! The processor's counter of time.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the counter is watched, and how often.
const WATCHED: Duration = Duration::from_millis(10);
const LOOKS: usize = 3;

/// Thousands of ticks a second of the time-stamp counter, measured once; `None` where there is none, or where it could
/// not be measured.
pub fn ticks_per_millisecond() -> Option<u64> {
    static MEASURED: OnceLock<Option<u64>> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let mut all: Vec<u64> = (0..LOOKS).filter_map(|_| measure()).collect();
        all.sort_unstable();
        // What was interrupted between clock and counter is at either end.
        all.get(all.len() / 2).copied().filter(|ticks| (100_000..20_000_000).contains(ticks))
    })
}

fn measure() -> Option<u64> {
    let (begun, first) = (Instant::now(), counter()?);
    std::thread::sleep(WATCHED);
    let (passed, last) = (begun.elapsed(), counter()?);
    let ticks = u128::from(last.checked_sub(first)?) * 1_000_000;
    u64::try_from(ticks.checked_div(passed.as_nanos())?).ok()
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: every processor of this kind has the counter, which changes nothing; a kernel may forbid it by a signal, and
    // none does for a process that did not ask for that.
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

//! What two processors do together. Two that are threads of one core do little more than one of them.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each turn takes.
const TURN: Duration = Duration::from_millis(60);
const TURNS: usize = 9;
/// Steps between two looks at the clock.
const STEPS: u64 = 10_000;

/// How much two threads get done at once, in the work of one that is alone: 2 where they have a core each. The median of
/// turns; `None` with one processor.
pub fn two_at_once() -> Option<f64> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let mut ratios: Vec<f64> = (0..TURNS)
        .map(|_| {
            let alone = work(TURN);
            let both = std::thread::scope(|scope| {
                let other = scope.spawn(|| work(TURN));
                work(TURN) + other.join().unwrap_or_default()
            });
            both / alone
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(TURNS / 2).copied()
}

/// Arithmetic for a while; how many steps a second.
fn work(time: Duration) -> f64 {
    let (begun, mut value, mut rounds) = (Instant::now(), 1_u64, 0_u32);
    while begun.elapsed() < time {
        for step in 0..STEPS {
            value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ step);
        }
        rounds += 1;
    }
    black_box(value);
    f64::from(rounds) / begun.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_do_something_and_not_many_times_as_much() {
        let Some(both) = two_at_once() else { return };
        assert!(both > 0.1 && both < 10.0, "{both}");
    }
}

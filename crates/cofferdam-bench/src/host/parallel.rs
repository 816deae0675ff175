//! Throughput of two processors together. Two threads of one core do little more than one.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// The duration of each turn.
const TURN: Duration = Duration::from_millis(60);
const TURNS: usize = 9;
/// Number of steps between two reads of the clock.
const STEPS: usize = 2_000;
/// Number of entries of the lookup table, which fills a core's own caches.
const ENTRIES: u32 = 1 << 15;

/// Returns the throughput of two threads at once, relative to one thread alone: 2 if each has a core. It is the median
/// of several turns. Returns `None` with one processor.
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

/// Keeps a core busy for a while: several independent sums, with table lookups and unpredictable branches. Returns the
/// number of rounds per second.
fn work(time: Duration) -> f64 {
    let table: Vec<u32> = (0..ENTRIES).map(|number| number.wrapping_mul(0x9e37_79b9)).collect();
    let (mut lanes, mut rounds) = ([1_u32, 2, 3, 4, 5, 6, 7, 8], 0_u32);
    let begun = Instant::now();
    while begun.elapsed() < time {
        for _ in 0..STEPS {
            for lane in &mut lanes {
                let found = table[(*lane % ENTRIES) as usize];
                *lane = match found & 1 {
                    0 => lane.wrapping_mul(0x85eb_ca6b) ^ found,
                    _ => lane.rotate_left(13).wrapping_add(found),
                };
            }
        }
        black_box(&lanes);
        rounds += 1;
    }
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

//! What two processors do together. Two that are threads of one core do little more than one of them.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each turn takes.
const TURN: Duration = Duration::from_millis(60);
const TURNS: usize = 9;
/// Steps between two looks at the clock.
const STEPS: usize = 2_000;
/// Entries of the table that is looked into: as much as a core's own caches hold.
const ENTRIES: u32 = 1 << 15;

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

/// Work for a while that keeps all of a core busy: several sums that do not wait for each other, by entries of a table and
/// branches that nobody can foresee. How many rounds of it a second.
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

//! Participation and order of contestants in rounds. Disturbances of the host affect all contestants alike, including
//! the teardown that one of them leaves to the kernel.

use std::time::Duration;

/// The minimum number of turns of a contestant, however slow it is.
const MIN_TURNS: usize = 5;

/// Returns the number of turns of a contestant: one in each round, or fewer if that would exceed its `share` of the
/// time.
pub fn turns(cost: Duration, share: Duration, rounds: usize) -> usize {
    let affordable = share.as_secs_f64() / cost.as_secs_f64().max(1e-6);
    (affordable as usize).max(MIN_TURNS).min(rounds)
}

/// Returns true if a contestant with this total number of turns takes part in this round. Turns are spread evenly.
pub fn takes_part(round: usize, turns: usize, rounds: usize) -> bool {
    (round + 1) * turns / rounds > round * turns / rounds
}

/// Random orders of the contestants, the same in every run of the benchmark.
#[derive(Debug)]
pub struct Orders {
    count: usize,
    state: u64,
}

impl Orders {
    /// Creates orders of this many contestants.
    pub fn new(count: usize) -> Self {
        Self { count, state: 0x2545_f491_4f6c_dd1d }
    }

    /// Returns a shuffled order (Fisher and Yates, with numbers by xorshift).
    pub fn next(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.count).collect();
        for last in (1..self.count).rev() {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            order.swap(last, (self.state % (last as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contestant_runs_once_per_round_and_sometimes_first() {
        let mut orders = Orders::new(4);
        let mut firsts = [0; 4];
        for _ in 0..400 {
            let order = orders.next();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
            firsts[order[0]] += 1;
        }
        assert!(firsts.iter().all(|count| (50..150).contains(count)), "{firsts:?}");
    }

    #[test]
    fn the_slow_have_fewer_turns_within_their_share_of_time() {
        let share = Duration::from_secs(1);
        assert_eq!(turns(Duration::from_millis(1), share, 300), 300);
        assert_eq!(turns(Duration::from_millis(50), share, 300), 20);
        assert_eq!(turns(Duration::from_secs(3), share, 300), MIN_TURNS);
        assert_eq!(turns(Duration::from_secs(3), share, 3), 3);
    }

    #[test]
    fn turns_are_spread_over_all_rounds() {
        for (turns, rounds) in [(1, 10), (5, 300), (7, 9), (300, 300)] {
            let taken: Vec<usize> = (0..rounds).filter(|round| takes_part(*round, turns, rounds)).collect();
            assert_eq!(taken.len(), turns);
            let widest = taken.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            assert!(widest <= rounds.div_ceil(turns), "{turns} of {rounds}: {taken:?}");
        }
    }
}

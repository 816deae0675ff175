//! Rounds: every contestant runs in each, in an order that changes from round to round, so that what disturbs the machine
//! disturbs all alike: the teardown that one leaves to the kernel, too.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::contestant::{Contestant, Contestants, Phases};
use crate::sample::Sample;

/// Runs of each task before the next contestant's turn.
const BATCH: usize = 5;

/// One contestant, one at a time.
#[derive(Debug)]
pub struct Alone {
    /// Who.
    pub contestant: Contestant,
    /// How long one run took.
    pub latency: Sample,
    /// Create, exec, close, where it has such phases.
    pub phases: Option<[Sample; 3]>,
}

/// One contestant, several at once.
#[derive(Debug)]
pub struct Crowd {
    /// Who.
    pub contestant: Contestant,
    /// How long one run took.
    pub latency: Sample,
    /// Runs a second.
    pub throughput: f64,
}

/// Everybody, with this many at once.
#[derive(Debug)]
pub struct AtOnce {
    /// How many at once.
    pub tasks: usize,
    /// The results.
    pub results: Vec<Crowd>,
}

/// Runs everybody `rounds` times, one at a time.
pub async fn one_at_a_time(contestants: &Contestants, rounds: usize) -> Result<Vec<Alone>> {
    let all = contestants.all();
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(rounds); all.len()];
    let mut phases: Vec<Vec<Phases>> = vec![Vec::new(); all.len()];
    let mut orders = Orders::new(all.len());
    for _ in 0..rounds {
        for index in orders.next() {
            let (time, parts) = contestants.run(all[index]).await?;
            times[index].push(time);
            phases[index].extend(parts);
        }
    }
    let results = all.into_iter().zip(times).zip(phases).map(|((contestant, times), phases)| {
        let part = |of: fn(&Phases) -> Duration| Sample::new(phases.iter().map(of).collect());
        Alone {
            contestant,
            latency: Sample::new(times),
            phases: (!phases.is_empty())
                .then(|| [part(|phases| phases.create), part(|phases| phases.exec), part(|phases| phases.close)]),
        }
    });
    Ok(results.collect())
}

/// Runs everybody about `rounds` times, `tasks` at once, in short batches.
pub async fn at_once(contestants: Contestants, tasks: usize, rounds: usize) -> Result<AtOnce> {
    let all = contestants.all();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); all.len()];
    let mut busy = vec![Duration::ZERO; all.len()];
    let mut orders = Orders::new(all.len());
    for _ in 0..rounds.div_ceil(tasks * BATCH) {
        for index in orders.next() {
            let start = Instant::now();
            let batch: Vec<_> = (0..tasks).map(|_| tokio::spawn(batch(contestants.clone(), all[index]))).collect();
            for task in batch {
                times[index].extend(task.await??);
            }
            busy[index] += start.elapsed();
        }
    }
    let results = all.into_iter().zip(times).zip(busy).map(|((contestant, times), busy)| Crowd {
        contestant,
        throughput: times.len() as f64 / busy.as_secs_f64(),
        latency: Sample::new(times),
    });
    Ok(AtOnce { tasks, results: results.collect() })
}

async fn batch(contestants: Contestants, contestant: Contestant) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(BATCH);
    for _ in 0..BATCH {
        times.push(contestants.run(contestant).await?.0);
    }
    Ok(times)
}

/// Orders of the contestants, the same in every run of the benchmark.
struct Orders {
    count: usize,
    state: u64,
}

impl Orders {
    fn new(count: usize) -> Self {
        Self { count, state: 0x2545_f491_4f6c_dd1d }
    }

    /// A shuffled order (Fisher and Yates, with numbers by xorshift).
    fn next(&mut self) -> Vec<usize> {
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
    fn everybody_has_a_turn_and_everybody_is_first_at_times() {
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
}

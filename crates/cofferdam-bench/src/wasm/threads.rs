//! Throughput of one thread and of two, each with an instance of its own that is restored. Blocks alternate, so that
//! disturbances of the host affect both alike.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use cofferdam_wasm::{Loaded, Runner};

use super::guest::Guest;
use crate::process_backend;

/// Numbers of threads.
pub const THREADS: [usize; 2] = [1, 2];

/// The effort of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Number of blocks for each number of threads.
    pub blocks: usize,
    /// Approximate duration of a block.
    pub block: Duration,
}

/// Runs per second by the number of threads: medians of the blocks.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// The guest.
    pub guest: Guest,
    /// Runs per second, in the order of [`THREADS`].
    pub per_second: [f64; 2],
    /// Throughput of two threads, relative to the preceding block of one.
    pub gain: f64,
}

/// Measures one guest.
pub fn measure(guest: Guest, loaded: &Loaded, effort: Effort) -> Result<Rates> {
    let trial = block(guest, loaded, 1, 200)?;
    let runs = (200.0 * effort.block.as_secs_f64() / trial.as_secs_f64().max(1e-6)) as usize;
    let runs = runs.max(1);
    let (mut one, mut two, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.blocks {
        let times = [block(guest, loaded, THREADS[0], runs)?, block(guest, loaded, THREADS[1], runs)?];
        let rate = |index: usize| (THREADS[index] * runs) as f64 / times[index].as_secs_f64();
        one.push(rate(0));
        two.push(rate(1));
        gains.push(rate(1) / rate(0));
    }
    Ok(Rates { guest, per_second: [median(one), median(two)], gain: median(gains) })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Runs a guest `runs` times on each of `threads` threads. Returns the time from the first start to the last end.
fn block(guest: Guest, loaded: &Loaded, threads: usize, runs: usize) -> Result<Duration> {
    let barrier = Barrier::new(threads);
    let work = |runner: &Runner<'_>| -> Result<(Instant, Instant)> {
        // An instance for each, and the initialisation of a thread.
        let first = run(guest, runner);
        barrier.wait();
        let start = Instant::now();
        first?;
        for _ in 0..runs {
            run(guest, runner)?;
        }
        Ok((start, Instant::now()))
    };
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| loaded.on_runner(work))).collect();
        let ended = all.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread failed"))??);
        ended.collect::<Result<_>>()
    })?;
    let start = spans.iter().map(|(start, _)| *start).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    start.zip(end).map(|(start, end)| end - start).ok_or_else(|| anyhow!("no thread ran"))
}

fn run(guest: Guest, runner: &Runner<'_>) -> Result<()> {
    process_backend::check(&runner.run(&guest.call())?, guest.output())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_numbers_of_threads_have_a_rate() {
        let module = Guest::Hello.module().unwrap().unwrap();
        let backend = cofferdam_wasm::WasmBackend::default();
        let loaded = backend.load(module, cofferdam_contract::Spec::default()).await.unwrap();
        let effort = Effort { blocks: 2, block: Duration::from_millis(5) };
        let rates = measure(Guest::Hello, &loaded, effort).unwrap();
        assert!(rates.per_second.iter().all(|rate| *rate > 0.0) && rates.gain > 0.0, "{rates:?}");
    }
}

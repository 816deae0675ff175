//! Rounds: each contestant of a round runs in it, in an order that changes from round to round.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::contestant::Contestant;
use super::field::{Field, Phases, Unavailable};
use super::workload::Workload;
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::Sample;

/// Number of runs of each task before the next contestant's turn.
const BATCH: usize = 5;
/// Maximum number of runs of each contestant that are not counted.
const WARM_UP: usize = 20;

/// The effort of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Total time of each contestant. Slow ones have fewer turns.
    pub share: Duration,
}

impl Effort {
    /// Returns the time at which rounds end, even if some are left. On a slower host, all contestants have fewer turns.
    fn deadline(self, contestants: usize) -> Instant {
        Instant::now() + self.share.saturating_mul(u32::try_from(contestants).unwrap_or(u32::MAX))
    }
}

/// Results of one contestant, one at a time.
#[derive(Debug)]
pub struct Alone {
    /// The contestant.
    pub contestant: Contestant,
    /// Times of single runs.
    pub latency: Sample,
    /// Times of create, exec and close, if it has such phases.
    pub phases: Option<[Sample; 3]>,
}

/// Results of all contestants with one workload, one at a time.
#[derive(Debug)]
pub struct Series {
    /// The workload.
    pub workload: Workload,
    /// The results.
    pub results: Vec<Alone>,
    /// Contestants that dropped out, and the reasons.
    pub unavailable: Vec<Unavailable>,
}

/// Results of one contestant, several at once.
#[derive(Debug)]
pub struct Crowd {
    /// The contestant.
    pub contestant: Contestant,
    /// Times of single runs.
    pub latency: Sample,
    /// Runs per second.
    pub throughput: f64,
}

/// Results of all contestants with this many at once.
#[derive(Debug)]
pub struct AtOnce {
    /// Number of concurrent runs.
    pub tasks: usize,
    /// The results.
    pub results: Vec<Crowd>,
}

/// A contestant during its measurement.
struct Runner {
    contestant: Contestant,
    turns: usize,
    times: Vec<Duration>,
    phases: Vec<Phases>,
    failed: Option<String>,
}

/// Runs all contestants, one at a time.
pub async fn one_at_a_time(field: &Field, workload: Workload, effort: Effort) -> Result<Series> {
    let mut runners = Vec::new();
    for contestant in
        field.entrants().iter().copied().filter(|contestant| contestant.alone() && contestant.runs(workload))
    {
        let mut runner = Runner { contestant, turns: 0, times: Vec::new(), phases: Vec::new(), failed: None };
        let cost = runner.warm_up(field, workload, effort.share).await?;
        runner.turns = turns(cost, effort.share, effort.rounds);
        runners.push(runner);
    }
    let mut orders = Orders::new(runners.len());
    let deadline = effort.deadline(runners.len());
    for round in 0..effort.rounds {
        if Instant::now() > deadline {
            break;
        }
        for index in orders.next() {
            let runner = &mut runners[index];
            if runner.failed.is_none() && takes_part(round, runner.turns, effort.rounds) {
                runner.run(field, workload).await?;
                field.rest(runner.contestant).await?;
            }
        }
    }
    let mut series = Series { workload, results: Vec::new(), unavailable: Vec::new() };
    for runner in runners {
        match runner.failed {
            Some(reason) => series.unavailable.push((runner.contestant, reason)),
            None if runner.times.is_empty() => {
                series.unavailable.push((runner.contestant, "the time ended before its first turn".to_owned()));
            }
            None => series.results.push(runner.result()),
        }
    }
    Ok(series)
}

impl Runner {
    /// Runs the contestant until it is warm. Returns its cost: the median, or the whole if there are preparations
    /// between two turns.
    async fn warm_up(&mut self, field: &Field, workload: Workload, share: Duration) -> Result<Duration> {
        let start = Instant::now();
        // The first run loads what later runs find in memory.
        self.run(field, workload).await?;
        self.times.clear();
        let warm = Instant::now();
        while self.failed.is_none() && self.times.len() < WARM_UP && start.elapsed() < share / 10 {
            self.run(field, workload).await?;
        }
        self.phases.clear();
        let mut times = std::mem::take(&mut self.times);
        times.sort_unstable();
        let each = u32::try_from(times.len()).ok().and_then(|count| warm.elapsed().checked_div(count));
        Ok(times.get(times.len() / 2).copied().max(each).unwrap_or_else(|| start.elapsed()))
    }

    /// Runs once. A peer that fails drops out, a contestant of Cofferdam must not fail.
    async fn run(&mut self, field: &Field, workload: Workload) -> Result<()> {
        match field.run(self.contestant, workload).await {
            Ok((time, phases)) => {
                self.times.push(time);
                self.phases.extend(phases);
            }
            Err(error) if matches!(self.contestant, Contestant::Peer(_)) => self.failed = Some(format!("{error:#}")),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn result(self) -> Alone {
        let part = |of: fn(&Phases) -> Duration| Sample::new(self.phases.iter().map(of).collect());
        let phases = (!self.phases.is_empty())
            .then(|| [part(|phases| phases.create), part(|phases| phases.exec), part(|phases| phases.close)]);
        Alone { contestant: self.contestant, latency: Sample::new(self.times), phases }
    }
}

/// Runs all contestants about as often as there are rounds, `tasks` at once, in short batches.
pub async fn at_once(field: Arc<Field>, tasks: usize, effort: Effort) -> Result<AtOnce> {
    let all = field.entrants().to_vec();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); all.len()];
    let mut busy = vec![Duration::ZERO; all.len()];
    let mut orders = Orders::new(all.len());
    for contestant in all.iter().copied() {
        batch(Arc::clone(&field), contestant).await?;
    }
    let deadline = effort.deadline(all.len());
    for round in 0..effort.rounds.div_ceil(tasks * BATCH) {
        // The first round is complete, so that every contestant has figures.
        if round > 0 && Instant::now() > deadline {
            break;
        }
        for index in orders.next() {
            let start = Instant::now();
            let batch: Vec<_> = (0..tasks).map(|_| tokio::spawn(batch(Arc::clone(&field), all[index]))).collect();
            for task in batch {
                times[index].extend(task.await??);
            }
            busy[index] += start.elapsed();
            field.rest(all[index]).await?;
        }
    }
    let results = all.into_iter().zip(times).zip(busy).map(|((contestant, times), busy)| Crowd {
        contestant,
        throughput: times.len() as f64 / busy.as_secs_f64(),
        latency: Sample::new(times),
    });
    Ok(AtOnce { tasks, results: results.collect() })
}

async fn batch(field: Arc<Field>, contestant: Contestant) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(BATCH);
    for _ in 0..BATCH {
        times.push(field.run(contestant, Workload::True).await?.0);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::super::peer::Peer;
    use super::*;

    /// Promise (Measurements and structure): Other sandboxes are measured if they are installed, and listed with the
    /// reason otherwise.
    #[tokio::test]
    async fn each_contestant_is_measured_or_skipped_with_a_reason() {
        let ours = [Contestant::Bare, Contestant::Exec, Contestant::Create, Contestant::Run, Contestant::Unprepared];
        let peers = [Contestant::Peer(Peer::Bubblewrap), Contestant::Peer(Peer::Nsjail)];
        let field = Field::prepare(&[ours.as_slice(), &peers].concat(), None).await.unwrap();
        let effort = Effort { rounds: 3, share: Duration::from_secs(60) };
        let series = one_at_a_time(&field, Workload::True, effort).await.unwrap();
        for contestant in ours {
            let row = series.results.iter().find(|row| row.contestant == contestant).unwrap();
            assert_eq!(row.latency.len(), 3, "{contestant:?}");
            assert_eq!(row.phases.is_some(), contestant == Contestant::Create);
        }
        for contestant in peers {
            let reason =
                field.unavailable.iter().chain(&series.unavailable).find(|(unavailable, _)| *unavailable == contestant);
            assert_ne!(series.ran(contestant), reason.is_some(), "{contestant:?}: {reason:?}");
            assert!(reason.is_none_or(|(_, reason)| reason == "not installed" || reason.starts_with("fails: ")));
        }
    }

    #[tokio::test]
    async fn several_at_once_have_a_throughput() {
        let field = Arc::new(Field::prepare(&[Contestant::Bare, Contestant::Run], None).await.unwrap());
        let effort = Effort { rounds: 20, share: Duration::from_secs(60) };
        let crowd = at_once(field, 2, effort).await.unwrap();
        assert_eq!(crowd.results.len(), 2);
        for row in crowd.results {
            assert_eq!(row.latency.len(), 20);
            assert!(row.throughput > 0.0);
        }
    }
}

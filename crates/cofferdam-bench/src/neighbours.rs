//! Noisy neighbours: latency while programs in other sandboxes keep every processor busy, compared with latency without
//! them, in alternating blocks.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cofferdam_contract::{Backend, ExecHandle, Limits, Sandbox, Spec};
use cofferdam_process::ProcessBackend;
use serde_json::{Value, json};

use crate::host::facts::{self, Facts};
use crate::options::NeighboursOptions;
use crate::process_backend;
use crate::results::{self, File};
use crate::rounds::Orders;
use crate::sample::{Sample, hundredths};
use crate::spawn::{Contestant, Field, Workload};

/// The measured contestants. The others are compared with the first.
const CONTESTANTS: [Contestant; 3] = [Contestant::Bare, Contestant::Exec, Contestant::Run];
/// Number of rounds between two changes of the neighbours.
const BLOCK: usize = 20;
/// Number of rounds that are not counted.
const WARM_UP: usize = 10;
/// Time for neighbours to start or to end.
const SETTLE: Duration = Duration::from_millis(100);
/// Wall and CPU time limit of a neighbour, longer than any block.
const LONG: Duration = Duration::from_secs(3600);

/// Measures, prints and writes the results.
pub fn run(options: &NeighboursOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(usize::try_from(options.neighbours)?, usize::try_from(options.n)?))?;
    let file = File::json(&format!("neighbours-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

/// Latencies of each of [`CONTESTANTS`], without neighbours and with.
#[derive(Debug)]
struct Report {
    neighbours: usize,
    /// Number of processors that the neighbours used, on average, while they ran. `None` if the host does not report
    /// it.
    busy: Option<f64>,
    quiet: Vec<Sample>,
    crowded: Vec<Sample>,
}

async fn measure(neighbours: usize, rounds: usize) -> Result<Report> {
    let field = Field::prepare(&CONTESTANTS, None).await?;
    ensure!(field.entrants() == CONTESTANTS, "not all contestants can be measured: {:?}", field.unavailable);
    let sandboxes = Neighbours::make(neighbours).await?;
    let mut times = [vec![Vec::new(); CONTESTANTS.len()], vec![Vec::new(); CONTESTANTS.len()]];
    let mut orders = Orders::new(CONTESTANTS.len());
    let (mut used, mut ran) = (Some(0.0), Duration::ZERO);
    block(&field, &mut orders, WARM_UP, &mut vec![Vec::new(); CONTESTANTS.len()]).await?;
    let [quiet, crowded] = &mut times;
    let mut left = rounds;
    while left > 0 {
        let now = left.min(BLOCK);
        left -= now;
        block(&field, &mut orders, now, quiet).await?;
        let (before, start) = (sandboxes.cpu_seconds().await?, Instant::now());
        let running = sandboxes.start().await?;
        tokio::time::sleep(SETTLE).await;
        block(&field, &mut orders, now, crowded).await?;
        stop(running).await?;
        ran += start.elapsed();
        let after = sandboxes.cpu_seconds().await?;
        used = used.zip(before).zip(after).map(|((used, before), after)| used + after - before);
        tokio::time::sleep(SETTLE).await;
    }
    let [quiet, crowded] = times.map(|times| times.into_iter().map(Sample::new).collect());
    Ok(Report { neighbours, busy: used.map(|used: f64| used / ran.as_secs_f64()), quiet, crowded })
}

/// Runs all contestants in each round, and keeps their times.
async fn block(field: &Field, orders: &mut Orders, rounds: usize, times: &mut [Vec<Duration>]) -> Result<()> {
    for _ in 0..rounds {
        for index in orders.next() {
            times[index].push(field.run(CONTESTANTS[index], Workload::True).await?.0);
        }
    }
    Ok(())
}

/// Sandboxes whose programs use all the CPU time they get.
struct Neighbours {
    sandboxes: Vec<Arc<dyn Sandbox>>,
}

impl Neighbours {
    async fn make(count: usize) -> Result<Self> {
        let backend: Arc<ProcessBackend> = process_backend::backend().await?;
        let limits = Limits { cpu_time: Some(LONG), wall_time: LONG, ..Limits::default() };
        let mut sandboxes = Vec::new();
        for _ in 0..count {
            sandboxes.push(backend.create(Spec::builder().limits(limits.clone()).build()?).await?);
        }
        Ok(Self { sandboxes })
    }

    async fn start(&self) -> Result<Vec<ExecHandle>> {
        let mut running = Vec::new();
        for sandbox in &self.sandboxes {
            running.push(sandbox.start(process_backend::request(&["/bin/sh", "-c", "while :; do :; done"])?).await?);
        }
        Ok(running)
    }

    /// Returns the CPU seconds that all have used so far.
    async fn cpu_seconds(&self) -> Result<Option<f64>> {
        let mut sum = Some(0.0);
        for sandbox in &self.sandboxes {
            let used = sandbox.usage().await?.cpu_seconds;
            sum = sum.zip(used).map(|(sum, used)| sum + used);
        }
        Ok(sum)
    }
}

/// Kills the neighbours, and checks that they were still running.
async fn stop(running: Vec<ExecHandle>) -> Result<()> {
    for neighbour in &running {
        ensure!(neighbour.try_exit().is_none(), "a neighbour ended by itself: {:?}", neighbour.try_exit());
        neighbour.cancel_within(Duration::ZERO).await?;
    }
    Ok(())
}

impl Report {
    fn table(&self, facts: &Facts) -> String {
        let busy = self.busy.map_or_else(String::new, |busy| format!("; together they used {busy:.2} processors"));
        let mut text =
            format!("{}\n{} neighbours, each in a sandbox of its own{busy}\n\n", facts.line(), self.neighbours);
        let _ = writeln!(
            text,
            "{:30} {:>6} {:>11} {:>11} {:>8}   {:>11} {:>11} {:>8} {:>11}",
            "", "n", "median us", "p99 us", "x bare", "with them", "p99 us", "x bare", "x without"
        );
        for ((contestant, quiet), crowded) in CONTESTANTS.iter().zip(&self.quiet).zip(&self.crowded) {
            let _ = writeln!(
                text,
                "{:30} {:6} {:11.0} {:11.0} {:8.2}   {:11.0} {:11.0} {:8.2} {:11.2}",
                contestant.name(),
                quiet.len(),
                quiet.median(),
                quiet.p99(),
                quiet.median() / self.quiet[0].median(),
                crowded.median(),
                crowded.p99(),
                crowded.median() / self.crowded[0].median(),
                crowded.median() / quiet.median(),
            );
        }
        text
    }

    fn json(&self, facts: &Facts) -> Value {
        let rows = CONTESTANTS.iter().zip(&self.quiet).zip(&self.crowded).map(|((contestant, quiet), crowded)| {
            json!({
                "name": contestant.slug(),
                "without": quiet.json(),
                "with": crowded.json(),
                "ratio": hundredths(crowded.median() / quiet.median()),
                "ratio_to_bare_without": hundredths(quiet.median() / self.quiet[0].median()),
                "ratio_to_bare_with": hundredths(crowded.median() / self.crowded[0].median()),
            })
        });
        json!({
            "benchmark": "neighbours",
            "machine": facts.json(),
            "neighbours": self.neighbours,
            "processors_of_neighbours": self.busy.map(hundredths),
            "results": rows.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_compared_with_bare_and_with_itself() {
        let samples = |micros: [u64; 3]| -> Vec<Sample> {
            micros.into_iter().map(|micros| Sample::new(vec![Duration::from_micros(micros); 3])).collect()
        };
        let report = Report {
            neighbours: 8,
            busy: Some(1.9),
            quiet: samples([500, 600, 1000]),
            crowded: samples([1000, 1500, 5000]),
        };
        let json = report.json(&facts::collect());
        let run = &json["results"][2];
        assert_eq!((run["ratio"].as_f64(), run["ratio_to_bare_with"].as_f64()), (Some(5.0), Some(5.0)));
        assert_eq!(run["ratio_to_bare_without"], 2.0);
        assert!(report.table(&facts::collect()).contains("together they used 1.90 processors"));
    }
}

//! Time of a program at each isolation level, compared with an unsandboxed start: one at a time, and several at once.

mod contestant;
mod field;
mod measure;
mod oci;
mod peer;
mod plot;
mod pythons;
mod report;
mod resident;
mod stage;
mod workload;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

pub use contestant::Contestant;
pub use field::Field;
pub use workload::Workload;

use crate::host::facts;
use crate::options::SpawnOptions;
use crate::results::{self, File};
use field::Unavailable;
use measure::{AtOnce, Effort, Series};
use report::Report;

/// Numbers of concurrent runs.
const AT_ONCE: [usize; 3] = [2, 4, 8];

/// Measures, prints and writes the results.
pub fn run(options: &SpawnOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let plan = Plan::new(options);
    let mut report = Report::new(facts);
    if let Some(program) = &plan.command_line {
        // The path from the target directory on, which shows the build profile.
        let parts: Vec<_> = program.iter().rev().take(3).collect();
        let shown: PathBuf = parts.into_iter().rev().collect();
        report.notes.push(format!("the command line is {}", shown.display()));
    }
    one_at_a_time(&plan, &mut report)?;
    if plan.workloads.contains(&Workload::True) {
        at_once(&plan, &mut report)?;
    }
    let stem = format!("spawn-{}", report.before.unix_time);
    let mut files = vec![File::json(&stem, &report.json())];
    for series in &report.series {
        files.push(File::new(format!("{stem}-{}.svg", series.workload.slug()), plot::draw(series)?));
    }
    results::publish(out, &files, &report.table())
}

/// The requested measurements.
struct Plan {
    command_line: Option<PathBuf>,
    selected: Vec<Contestant>,
    workloads: Vec<Workload>,
    rounds: usize,
    share: Duration,
}

impl Plan {
    fn new(options: &SpawnOptions) -> Self {
        // All results are relative to bare.
        let wanted = |contestant: &Contestant| {
            options.only.is_empty() || *contestant == Contestant::Bare || options.only.contains(contestant)
        };
        let (rounds, share) = if options.quick { (300, 1000) } else { (2000, 20_000) };
        Self {
            selected: Contestant::all().into_iter().filter(wanted).collect(),
            command_line: options.command_line.clone(),
            workloads: options.workload.map_or_else(|| Workload::ALL.to_vec(), |workload| vec![workload]),
            rounds: options.n.map_or(rounds, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            share: Duration::from_millis(share),
        }
    }

    /// Returns the effort of a workload. Python takes many times as long.
    fn effort(&self, workload: Workload) -> Effort {
        match workload {
            Workload::True => Effort { rounds: self.rounds, share: self.share },
            Workload::Python => Effort { rounds: self.rounds.div_ceil(4), share: self.share },
        }
    }
}

fn one_at_a_time(plan: &Plan, report: &mut Report) -> Result<()> {
    block_on(Threads::One, async {
        let field = Field::prepare(&plan.selected, plan.command_line.as_deref()).await?;
        for workload in plan.workloads.iter().copied() {
            match workload.missing() {
                Some(reason) => report.notes.push(format!("workload {} is skipped: {reason}", workload.slug())),
                None => {
                    let effort = plan.effort(workload);
                    report.series.push(measure::one_at_a_time(&field, workload, effort).await?);
                }
            }
        }
        report.unavailable = field.unavailable.clone();
        report.weaker = field.weaker.clone();
        Ok(())
    })
}

fn at_once(plan: &Plan, report: &mut Report) -> Result<()> {
    let ran = |contestant: &Contestant| report.series.iter().any(|series| series.ran(*contestant));
    let selected: Vec<Contestant> = plan
        .selected
        .iter()
        .copied()
        .filter(|contestant| contestant.at_once() && (ran(contestant) || !contestant.alone()))
        .collect();
    for tasks in AT_ONCE {
        report.at_once.push(block_on(Threads::Two, async {
            let field = Arc::new(Field::prepare(&selected, plan.command_line.as_deref()).await?);
            measure::at_once(field, tasks, plan.effort(Workload::True)).await
        })?);
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Threads {
    One,
    Two,
}

fn block_on<T>(threads: Threads, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut builder = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread(),
        Threads::Two => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Threads::Two = threads {
        builder.worker_threads(2);
    }
    builder.enable_all().build()?.block_on(work)
}

//! Times of VMs: boot, restore and exec, and the memory of snapshots and idle clones. Compared with the same kernel in
//! plain QEMU up to the prompt of a shell, and with `docker run`, in one run.

mod clones;
pub mod docker;
mod field;
mod figure;
mod plain;
mod plot;
mod report;
mod rounds;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::census::{self, Census};
use crate::host::{facts, parallel};
use crate::options::VmOptions;
use crate::program;
use crate::results::{self, File};
use field::Field;
use report::Report;

/// Measures, prints and writes the results.
pub fn run(options: &VmOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(measure(options))?;
    let stem = format!("vm-{}", facts.unix_time);
    let mut files = vec![File::json(&stem, &report.json(&facts))];
    if !report.results.is_empty() {
        files.push(File::new(format!("{stem}.svg"), plot::draw(&report.results)?));
    }
    results::publish(out, &files, &report.table(&facts))
}

/// The effort of a measurement.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Time of each contestant. Slow ones have fewer turns.
    share: Duration,
    clones: usize,
}

impl Effort {
    fn new(options: &VmOptions) -> Self {
        let (rounds, share, clones) = if options.quick { (20, 15, 10) } else { (100, 90, 100) };
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            rounds: options.n.map_or(rounds, count),
            share: Duration::from_secs(share),
            clones: options.clones.map_or(clones, count),
        }
    }
}

async fn measure(options: &VmOptions) -> Result<Report> {
    let effort = Effort::new(options);
    // Descriptors that the runtime opens with its first child remain open.
    program::succeeds(&["true"]).await.map_err(anyhow::Error::msg)?;
    let before = Census::now();
    let field = Field::prepare(options).await?;
    let outcome = measured(&field, effort).await;
    field.end().await?;
    let left = census::left(&before).await;
    Ok(Report { left, ..outcome? })
}

async fn measured(field: &Field, effort: Effort) -> Result<Report> {
    let together = tokio::task::spawn_blocking(parallel::two_at_once).await?;
    let (results, unavailable) = rounds::measure(field, effort.rounds, effort.share).await?;
    let clones = clones::measure(field, effort.clones).await?;
    let snapshot = field.snapshot_size()?;
    Ok(Report { about: field.about.clone(), results, unavailable, clones, snapshot, together, left: Vec::new() })
}

//! Times of WebAssembly runs, in process and out of it, compared with native programs. Also the throughput, and the
//! memory of idle sessions.

mod cache;
mod contestant;
mod field;
mod guest;
mod idle;
mod measure;
mod plot;
mod report;
mod target;
mod threads;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

pub use guest::Guest;

use crate::host::facts;
use crate::options::WasmOptions;
use crate::results::{self, File};
use cache::Interpreters;
use field::Field;
use report::Report;

/// Measures, prints and writes the results.
pub fn run(options: &WasmOptions, out: &Path) -> Result<()> {
    let mut report = Report::new(facts::collect());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure_all(&Plan::new(options), &mut report))?;
    let stem = format!("wasm-{}", report.before.unix_time);
    let mut files = vec![File::json(&stem, &report.json())];
    for series in report.series.iter().filter(|series| !series.results.is_empty()) {
        files.push(File::new(format!("{stem}-{}.svg", series.guest.slug()), plot::draw(series)?));
    }
    results::publish(out, &files, &report.table())
}

/// The requested measurements.
struct Plan<'a> {
    options: &'a WasmOptions,
    guests: Vec<Guest>,
    rounds: measure::Effort,
    blocks: threads::Effort,
}

impl<'a> Plan<'a> {
    fn new(options: &'a WasmOptions) -> Self {
        let (rounds, share, blocks) = if options.quick { (100, 600, 5) } else { (400, 4000, 20) };
        let rounds = options.n.map_or(rounds, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Self {
            options,
            guests: if options.workload.is_empty() { Guest::ALL.to_vec() } else { options.workload.clone() },
            rounds: measure::Effort { rounds, share: Duration::from_millis(share) },
            blocks: threads::Effort { blocks, block: Duration::from_millis(100) },
        }
    }
}

async fn measure_all(plan: &Plan<'_>, report: &mut Report) -> Result<()> {
    let interpreters = Interpreters::new(plan.options.cache.clone());
    for guest in plan.guests.iter().copied() {
        let field = Field::prepare(guest, &interpreters, plan.options.command_line.as_deref()).await?;
        report.series.push(measure::series(&field, plan.rounds).await?);
        if let Some(loaded) = field.loaded() {
            report.rates.push(threads::measure(guest, loaded, plan.blocks)?);
        }
    }
    let sessions = usize::try_from(plan.options.sessions)?;
    if sessions > 0 {
        (report.idle, report.not_idle) = idle::measure(&interpreters, sessions).await?;
    }
    Ok(())
}

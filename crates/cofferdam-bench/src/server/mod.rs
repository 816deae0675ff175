//! The server under load: one-shot runs by many clients compared with the library, requests that wait for room, and idle
//! sandboxes, in one run on the loopback interface.
//!
//! Times are printed and not asserted. The benchmark fails if queued requests run out of order, if one has no answer, or
//! if a sandbox leaves something behind.

mod idle;
mod load;
mod process;
mod queue;
mod report;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::host::facts;
use crate::options::ServerOptions;
use crate::results::{self, File};
use process::ServerHome;
use report::Report;

/// The amount of work.
#[derive(Debug)]
struct Plan {
    program: PathBuf,
    /// Requests for each number of clients.
    requests: usize,
    queued: usize,
    idle: usize,
    /// One-shot runs beside idle sandboxes.
    rounds: usize,
}

impl Plan {
    fn new(options: &ServerOptions) -> Result<Self> {
        let (requests, queued, idle, rounds) =
            if options.quick { (512, 400, 50, 20) } else { (8000, 10_000, 1000, 200) };
        let count = |n: Option<u64>, default| n.map_or(Ok(default), usize::try_from);
        let beside = || -> Result<PathBuf> { Ok(std::env::current_exe()?.with_file_name("cofferdam")) };
        Ok(Self {
            program: options.command_line.clone().map_or_else(beside, anyhow::Ok)?,
            requests: count(options.n, requests)?,
            queued: count(options.queued, queued)?,
            idle: count(options.idle, idle)?,
            rounds,
        })
    }
}

/// Measures, prints and writes the results.
pub fn run(options: &ServerOptions, out: &Path) -> Result<()> {
    let (facts, plan) = (facts::collect(), Plan::new(options)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async { tokio::spawn(measure(plan)).await? })?;
    let stem = format!("server-{}", facts.unix_time);
    let files = [File::json(&stem, &report.json(&facts)), File::new(format!("{stem}.svg"), report.plot()?)];
    results::publish(out, &files, &report.table(&facts))
}

async fn measure(plan: Plan) -> Result<Report> {
    let server = ServerHome::create(&plan.program)?.start(&["--without-keys"]).await?;
    let before = server.resident();
    let loads = load::measure(&server, plan.requests).await.context("load")?;
    let resident = [before, server.resident()];
    server.stop().await.context("the server under load")?;
    let queue = queue::measure(&plan.program, plan.queued).await.context("queued requests")?;
    let idle = idle::measure(&plan.program, plan.idle, plan.rounds).await.context("idle sandboxes")?;
    Ok(Report { loads, resident, queue, idle })
}

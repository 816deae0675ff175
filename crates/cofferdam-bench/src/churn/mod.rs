//! What is left and what grows while sandboxes are made, run in, and destroyed, one after the other.

mod look;
mod report;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use cofferdam_contract::{Backend, Spec};
use cofferdam_process::ProcessBackend;

use crate::host::{kernel, machine};
use crate::options::ChurnOptions;
use crate::ours;
use crate::results::{self, File};
use crate::spawn::Workload;
use look::Look;
use report::{Report, Sampled};

/// Samples while it runs, the first excluded.
const SAMPLES: u64 = 10;
/// Sandboxes before the first sample: what is made once, or kept ready, is there then.
const WARM_UP: u64 = 50;
/// The longest that the kernel is waited for: it takes down network namespaces one by one, in the background.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);
/// Time in which nothing may change any more for it to be settled.
const STEADY: Duration = Duration::from_secs(3);

/// Measures, prints and writes.
pub fn run(options: &ChurnOptions, out: &Path) -> Result<()> {
    let facts = machine::facts();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(options.n))?;
    let file = File::json(&format!("churn-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

async fn measure(count: u64) -> Result<Report> {
    let backend = ours::backend().await?;
    churn(&backend, WARM_UP).await?;
    settle().await;
    let start = Instant::now();
    let mut sampled = vec![Sampled { done: 0, look: Look::now() }];
    let mut done = 0;
    for part in 1..=SAMPLES {
        churn(&backend, count * part / SAMPLES - done).await?;
        done = count * part / SAMPLES;
        sampled.push(Sampled { done, look: Look::now() });
    }
    let took = start.elapsed();
    let settling = settle().await;
    Ok(Report { took, settling, sampled, settled: Look::now() })
}

async fn churn(backend: &ProcessBackend, count: u64) -> Result<()> {
    for _ in 0..count {
        let sandbox = backend.create(Spec::default()).await?;
        let completed = sandbox.exec(ours::request(Workload::True.argv())?).await?;
        sandbox.close().await?;
        ours::check(&completed, Workload::True.output())?;
    }
    Ok(())
}

/// Waits until the kernel has taken down what it is going to, and gives the time that this took.
async fn settle() -> Duration {
    let start = Instant::now();
    let mut changed = Instant::now();
    let mut last = kernel::network_namespaces();
    while changed.elapsed() < STEADY && start.elapsed() < SETTLE_LIMIT {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = kernel::network_namespaces();
        if now != last {
            (last, changed) = (now, Instant::now());
        }
    }
    start.elapsed()
}

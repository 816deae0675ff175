//! Leak test: samples what remains while sandboxes are created, used and destroyed in sequence.

mod reading;
mod report;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use cofferdam_contract::{Backend, Spec};
use cofferdam_process::ProcessBackend;

use crate::host::{facts, kernel};
use crate::options::LeakOptions;
use crate::process_backend;
use crate::results::{self, File};
use crate::spawn::Workload;
use reading::Reading;
use report::{Report, Sampled};

/// Number of samples during the run, without the first.
const SAMPLES: u64 = 10;
/// Number of sandboxes before the first sample. After them, everything that is created once or prepared exists.
const WARM_UP: u64 = 50;
/// Maximum wait for the kernel, which removes network namespaces one by one in the background.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time without changes after which the kernel has settled.
const STEADY: Duration = Duration::from_secs(3);

/// Measures, prints and writes the results.
pub fn run(options: &LeakOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(options.n))?;
    let file = File::json(&format!("leak-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

async fn measure(count: u64) -> Result<Report> {
    let backend = process_backend::backend().await?;
    create_and_destroy(&backend, WARM_UP).await?;
    settle().await;
    let start = Instant::now();
    let mut sampled = vec![Sampled { done: 0, reading: Reading::now() }];
    let mut done = 0;
    for part in 1..=SAMPLES {
        create_and_destroy(&backend, count * part / SAMPLES - done).await?;
        done = count * part / SAMPLES;
        sampled.push(Sampled { done, reading: Reading::now() });
    }
    let took = start.elapsed();
    let settling = settle().await;
    Ok(Report { took, settling, sampled, settled: Reading::now() })
}

async fn create_and_destroy(backend: &ProcessBackend, count: u64) -> Result<()> {
    for _ in 0..count {
        let sandbox = backend.create(Spec::default()).await?;
        let completed = sandbox.exec(process_backend::request(Workload::True.argv())?).await?;
        sandbox.close().await?;
        process_backend::check(&completed, Workload::True.output())?;
    }
    Ok(())
}

/// Waits until the kernel has finished its cleanup. Returns the time that this took.
async fn settle() -> Duration {
    let start = Instant::now();
    let mut changed = Instant::now();
    let mut last = kernel::network_namespaces();
    while changed.elapsed() < STEADY && start.elapsed() < SETTLE_TIMEOUT {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = kernel::network_namespaces();
        if now != last {
            (last, changed) = (now, Instant::now());
        }
    }
    start.elapsed()
}

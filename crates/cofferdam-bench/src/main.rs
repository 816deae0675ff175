//! Benchmarks that compare Cofferdam with its alternatives in one run, because absolute times drift from hour to hour
//! and from machine to machine. `cargo xtask bench` builds and starts it. It asserts nothing about time.
#![forbid(unsafe_code)]

mod contestant;
mod machine;
mod measure;
mod options;
mod report;
mod sample;

use anyhow::{Context, Result};

use contestant::Contestants;
use options::Options;

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let before = machine::facts();
    let one_at_a_time = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let contestants = Contestants::prepare().await?;
            measure::one_at_a_time(&contestants, options.rounds).await
        })?
    };
    let mut at_once = Vec::new();
    for tasks in [2, 4, 8] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        at_once.push(runtime.block_on(async {
            let contestants = Contestants::prepare().await?;
            measure::at_once(contestants, tasks, options.rounds_at_once).await
        })?);
    }
    let report = report::Report { before, load_after: machine::load(), one_at_a_time, at_once };
    print!("{}", report.table());
    let file = options.out.join(format!("spawn-{}.json", report.before.unix_time));
    std::fs::create_dir_all(&options.out).with_context(|| format!("cannot make {}", options.out.display()))?;
    std::fs::write(&file, format!("{:#}\n", report.json()))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("\nwritten to {}", file.display());
    Ok(())
}

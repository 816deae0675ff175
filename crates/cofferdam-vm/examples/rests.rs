//! Measures the time of snapshots, restores, forks and claims, and the memory of clones:
//! `cargo run --release -p cofferdam-vm --example rests -- IMAGES PACKAGES tiny|base TURNS`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Backend, ByteSize, ExecRequest, Limits, Sandbox, Spec};
use cofferdam_debian::Recipe;
use cofferdam_vm::image::{RootSource, Source};
use cofferdam_vm::{MakePolicy, VmBackend, VmConfig, VmSnapshot, sparse};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Describes the median and the maximum of some times.
fn shown(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("median {:.1?}, slowest {:.1?}", times[times.len() / 2], times[times.len() - 1])
}

async fn answer(sandbox: &Arc<dyn Sandbox>) -> Outcome<()> {
    let done = sandbox.exec(ExecRequest::argv(["true"]).build()?).await?;
    if done.exit.success() { Ok(()) } else { Err("it failed".into()) }
}

/// Returns the proportional memory of all VMMs of this process together, in KiB.
fn memory() -> (u64, u64) {
    let own = std::process::id().to_string();
    let mut sum = (0, 0);
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        if rest.split(' ').nth(1) != Some(&*own) {
            continue;
        }
        let text = std::fs::read_to_string(path.join("smaps_rollup")).unwrap_or_default();
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
            lines.next().and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or_default()
        };
        sum = (sum.0 + value("Pss:"), sum.1 + value("Private_Dirty:"));
    }
    sum
}

/// Returns the processor time of all VMMs of this process together, in hundredths of a second.
fn cpu_time() -> u64 {
    let own = std::process::id().to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let ours = stats.filter_map(|stat| {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<u64>().ok();
        (fields[1] == own).then(|| Some(ticks(11)? + ticks(12)?))?
    });
    ours.sum()
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [images, packages, what, turns] = &*arguments else { return Err("give two caches, a root and turns".into()) };
    let turns: usize = turns.parse()?;
    let recipe = if what == "base" { Recipe::base() } else { Recipe::tiny() };
    let config = VmConfig {
        images: images.into(),
        packages: packages.into(),
        source: Source { root: RootSource::Debian(recipe), ..Source::default() },
        make: MakePolicy::Missing,
        ..VmConfig::new(images)
    };
    let backend = VmBackend::new(config)?;
    println!("{}", backend.monitor().await?);
    // A VM of little more than 128 MiB.
    let limits = Limits { memory: Some(ByteSize::from_mebibytes(32)), ..Limits::default() };
    let spec = Spec::builder().limits(limits).build()?;
    let mut cold = Vec::new();
    for _ in 0..turns.div_ceil(3) {
        let begun = Instant::now();
        let sandbox = backend.create(spec.clone()).await?;
        answer(&sandbox).await?;
        cold.push(begun.elapsed());
        println!("cold boot: {} ms of a processor", cpu_time() * 10);
        sandbox.close().await?;
    }
    println!("cold boot to first exec: {}", shown(cold));
    let source = backend.create(spec.clone()).await?;
    answer(&source).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (mut whole, mut beside) = (Vec::new(), Vec::new());
    let mut snapshot = source.snapshot().await?;
    for _ in 0..turns {
        let begun = Instant::now();
        snapshot = source.snapshot().await?;
        let taken = begun.elapsed();
        let memory = VmSnapshot::of(&snapshot).ok_or("no snapshot")?.state().memory();
        let begun = Instant::now();
        drop(sparse::copy_memory(memory, u64::MAX)?);
        let copied = begun.elapsed();
        whole.push(taken);
        beside.push(taken.saturating_sub(copied));
    }
    let sizes = VmSnapshot::of(&snapshot).ok_or("no snapshot")?.sizes()?;
    println!("snapshot: {}; beside a copy of its memory: {}; {sizes:?}", shown(whole), shown(beside));
    let (mut made, mut first) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let idle = cpu_time();
        let begun = Instant::now();
        let clone = backend.restore(snapshot.clone(), spec.clone()).await?;
        made.push(begun.elapsed());
        println!("restore until measured: {} ms of a processor", (cpu_time() - idle) * 10);
        answer(&clone).await?;
        first.push(begun.elapsed());
        println!("restore: {} ms of a processor", (cpu_time() - idle) * 10);
        clone.close().await?;
    }
    println!("restore: {}; to first exec: {}", shown(made), shown(first));
    let mut forks = Vec::new();
    let mut clones = Vec::new();
    for _ in 0..turns.div_ceil(3) {
        let before = memory();
        let begun = Instant::now();
        let taken = source.snapshot().await?;
        let making: Vec<_> = (0..10)
            .map(|_| {
                let (backend, taken, spec) = (backend.clone(), taken.clone(), spec.clone());
                tokio::spawn(async move {
                    let clone = backend.restore(taken, spec).await.map_err(|error| error.to_string())?;
                    answer(&clone).await.map_err(|error| error.to_string())?;
                    Ok::<_, String>(clone)
                })
            })
            .collect();
        for clone in making {
            clones.push(clone.await??);
        }
        forks.push(begun.elapsed());
        let now = memory();
        println!(
            "memory of ten clones: {} KiB each (Pss), {} private",
            (now.0 - before.0) / 10,
            (now.1 - before.1) / 10
        );
        for clone in clones.drain(..) {
            clone.close().await?;
        }
    }
    println!("fork of 10 until all answered: {}", shown(forks));
    let (mut warmed, mut claimed) = (Vec::new(), Vec::new());
    drop(backend.warm(spec.clone()).await?);
    for _ in 0..turns {
        let begun = Instant::now();
        let warm = backend.warm(spec.clone()).await?;
        warmed.push(begun.elapsed());
        let begun = Instant::now();
        let sandbox = warm.claim(spec.clone()).await?;
        answer(&sandbox).await?;
        claimed.push(begun.elapsed());
        sandbox.close().await?;
    }
    println!("warm: {}; claim to first exec: {}", shown(warmed), shown(claimed));
    Ok(())
}

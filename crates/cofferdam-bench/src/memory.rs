//! Cost of idle sandboxes: memory of their processes, and kernel memory. `docs/performance.md` explains each figure.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use cofferdam_contract::{Backend, PreparedSandbox, Spec};
use cofferdam_process::ProcessBackend;
use serde_json::{Value, json};

use crate::host::facts::{self, Facts};
use crate::host::groups::{self, GroupMemory};
use crate::host::kernel::{self, KernelMemory};
use crate::host::tree::{self, Memory};
use crate::options::MemoryOptions;
use crate::process_backend;
use crate::results::{self, File};
use crate::sample::tenths;
use crate::target::{self, Findings};

/// Number of sandboxes that are closed concurrently at the end.
const CLOSED_AT_ONCE: usize = 32;
/// Divisor of the host's memory that must stay available.
const MIN_AVAILABLE_DIVISOR: u64 = 10;
/// Number of sandboxes between two checks of the available memory.
const CHECK_EVERY: usize = 50;
/// Time for the launcher to finish its preparations, so that they count before and after.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures, prints and writes the results.
pub fn run(options: &MemoryOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let wanted = usize::try_from(options.n)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(wanted))?;
    let file = File::json(&format!("memory-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

/// A sample of all figures.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    launcher: Option<Memory>,
    sandboxes: Option<Memory>,
    processes: usize,
    kernel: KernelMemory,
    groups: GroupMemory,
}

#[derive(Debug)]
struct Report {
    wanted: usize,
    held: usize,
    stopped: Option<String>,
    before: Reading,
    after: Reading,
}

async fn measure(wanted: usize) -> Result<Report> {
    let backend = process_backend::backend().await?;
    tokio::time::sleep(SETTLE).await;
    let before = read_all();
    let (sandboxes, stopped) = hold(&backend, wanted).await;
    tokio::time::sleep(SETTLE).await;
    let after = read_all();
    let held = sandboxes.len();
    close(sandboxes).await?;
    match (held, stopped) {
        (0, Some(reason)) => bail!("cannot hold any sandbox: {reason}"),
        (held, stopped) => Ok(Report { wanted, held, stopped, before, after }),
    }
}

/// Creates a sandbox as a pool holds it: prepared, and waiting for its request.
async fn idle(backend: &ProcessBackend) -> Result<Box<dyn PreparedSandbox>> {
    Ok(backend.prepare(Spec::default()).await?)
}

/// Holds the requested number, or as many as the host allows. In that case, also returns the reason.
async fn hold(backend: &ProcessBackend, wanted: usize) -> (Vec<Box<dyn PreparedSandbox>>, Option<String>) {
    let mut sandboxes = Vec::new();
    while sandboxes.len() < wanted {
        if sandboxes.len() % CHECK_EVERY == 0 {
            let now = kernel::memory();
            if now.available < now.total / MIN_AVAILABLE_DIVISOR {
                return (sandboxes, Some(format!("only {} MiB of memory are left", now.available / 1024)));
            }
        }
        match idle(backend).await {
            Ok(sandbox) => sandboxes.push(sandbox),
            Err(error) => return (sandboxes, Some(format!("{error:#}"))),
        }
    }
    (sandboxes, None)
}

async fn close(mut sandboxes: Vec<Box<dyn PreparedSandbox>>) -> Result<()> {
    while !sandboxes.is_empty() {
        let some = sandboxes.split_off(sandboxes.len().saturating_sub(CLOSED_AT_ONCE));
        let closing: Vec<_> =
            some.into_iter().map(|sandbox| tokio::spawn(async move { sandbox.close().await })).collect();
        for task in closing {
            task.await??;
        }
    }
    Ok(())
}

fn read_all() -> Reading {
    let launchers = tree::launchers();
    let mut others = tree::descendants();
    others.retain(|pid| !launchers.contains(pid));
    Reading {
        launcher: tree::memory(&launchers),
        sandboxes: tree::memory(&others),
        processes: others.len(),
        kernel: kernel::memory(),
        groups: groups::memory(&groups::of_launchers(&launchers)),
    }
}

/// A figure before and after, in KiB. `None` if this host does not report it.
type Row = (&'static str, Option<u64>, Option<u64>);

impl Report {
    fn rows(&self) -> Vec<Row> {
        let (before, after) = (&self.before, &self.after);
        let both = |name, of: fn(&Reading) -> u64| (name, Some(of(before)), Some(of(after)));
        let optional = |name, of: fn(&Reading) -> Option<u64>| (name, of(before), of(after));
        vec![
            optional("processes, PSS", |reading| Some(reading.sandboxes?.proportional)),
            optional("processes, USS", |reading| Some(reading.sandboxes?.own)),
            optional("launcher, PSS", |reading| Some(reading.launcher?.proportional)),
            optional("launcher, USS", |reading| Some(reading.launcher?.own)),
            optional("control group, all", |reading| reading.groups.all),
            optional("control group, kernel", |reading| reading.groups.kernel),
            both("host: Slab", |reading| reading.kernel.slab),
            both("host: SUnreclaim", |reading| reading.kernel.unreclaimable),
            both("host: KernelStack", |reading| reading.kernel.stacks),
            both("host: PageTables", |reading| reading.kernel.tables),
            both("host: Percpu", |reading| reading.kernel.per_processor),
            both("host: Shmem", |reading| reading.kernel.shared),
            // Less available memory means more used memory.
            both("host: not available", |reading| reading.kernel.total.saturating_sub(reading.kernel.available)),
        ]
    }

    fn each(&self, before: Option<u64>, after: Option<u64>) -> Option<f64> {
        Some((after? as f64 - before? as f64) / self.held as f64)
    }

    fn table(&self, facts: &Facts) -> String {
        let mut text = format!("{}\n\n", facts.line());
        if let Some(reason) = &self.stopped {
            text += &format!("{} sandboxes were requested; the host allows {}: {reason}\n\n", self.wanted, self.held);
        }
        let extra = self.after.processes as f64 - self.before.processes as f64;
        text += &format!(
            "{} idle sandboxes, as a pool holds them; {} processes below the launcher, {:.2} a sandbox\n\n",
            self.held,
            self.after.processes,
            extra / self.held as f64
        );
        text += &format!("{:24} {:>12} {:>12} {:>14}\n", "KiB", "before", "held", "each sandbox");
        let shown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
        for (name, before, after) in self.rows() {
            let each = self.each(before, after).map(|value| format!("{value:.1}"));
            let (before, after) = (before.map(|value| value.to_string()), after.map(|value| value.to_string()));
            text += &format!("{name:24} {:>12} {:>12} {:>14}\n", shown(before), shown(after), shown(each));
        }
        // The strictest figure: the decrease of the host's available memory, including the owner's own memory.
        let unavailable = |reading: &Reading| Some(reading.kernel.total.saturating_sub(reading.kernel.available));
        let pooled_kib = self.each(unavailable(&self.before), unavailable(&self.after));
        text + &target::memory_table(&Findings { pooled_kib, ..Findings::default() })
    }

    fn json(&self, facts: &Facts) -> Value {
        let rows = self.rows().into_iter().map(|(name, before, after)| {
            json!({
                "name": name, "before_kib": before, "held_kib": after,
                "each_kib": self.each(before, after).map(tenths),
            })
        });
        json!({
            "benchmark": "memory",
            "machine": facts.json(),
            "wanted": self.wanted,
            "held": self.held,
            "stopped": self.stopped,
            "processes_before": self.before.processes,
            "processes_held": self.after.processes,
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let reading = |proportional, kernel| Reading {
            sandboxes: Some(Memory { proportional, ..Memory::default() }),
            groups: GroupMemory { all: Some(kernel), kernel: None },
            kernel: KernelMemory { total: 10_000, available: 9000 - kernel, ..KernelMemory::default() },
            ..Reading::default()
        };
        Report {
            wanted: 20,
            held: 10,
            stopped: Some("no more".to_owned()),
            before: reading(50, 0),
            after: reading(1050, 500),
        }
    }

    #[test]
    fn cost_per_sandbox_is_the_difference_divided_by_count() {
        let json = report().json(&facts::collect());
        let each = |name: &str| {
            let rows = json["rows"].as_array().unwrap();
            rows.iter().find(|row| row["name"] == name).unwrap()["each_kib"].clone()
        };
        assert_eq!(each("processes, PSS"), 100.0);
        assert_eq!(each("control group, all"), 50.0);
        assert_eq!(each("control group, kernel"), Value::Null);
        assert_eq!(each("host: not available"), 50.0);
    }

    #[tokio::test]
    async fn sandboxes_are_held_and_closed_again() {
        let backend = process_backend::backend().await.unwrap();
        let (held, stopped) = hold(&backend, 3).await;
        assert_eq!((held.len(), stopped), (3, None));
        assert!(held.iter().all(|warm| warm.is_alive()));
        close(held).await.unwrap();
    }

    #[test]
    fn a_table_reports_that_the_host_allowed_fewer() {
        let text = report().table(&facts::collect());
        assert!(text.contains("20 sandboxes were requested; the host allows 10: no more"), "{text}");
        assert!(text.contains("unknown"), "{text}");
    }
}

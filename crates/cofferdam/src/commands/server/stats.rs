//! `cofferdam stats`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cofferdam::{ByteSize, ErrorKind, Result};
use cofferdam_server::client::{Client, Method};
use cofferdam_server::rest::views::{SandboxView, StatsView};
use serde_json::{Value, json};

use super::client::{all, encoded};
use super::connect;
use crate::args::StatsArgs;
use crate::commands::block_on;
use crate::commands::run::no_signals;
use crate::interrupts::Interrupts;
use crate::report::{self, Form};
use crate::terminal::one_line;

/// The time between two measurements.
const INTERVAL: Duration = Duration::from_secs(1);
/// Moves the cursor to the start and clears the rest of the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// A measurement of a sandbox.
struct Sample {
    sandbox: SandboxView,
    stats: StatsView,
    at: Instant,
    /// CPUs in use since the measurement before, in percent of one.
    cpu_percent: Option<f64>,
}

/// Prints the resource usage of sandboxes.
pub fn main(args: &StatsArgs) -> u8 {
    let form = Form::of(args.json);
    let done = connect(&args.client).and_then(|client| block_on(async { watch(&client, args, form).await }));
    report::finish(done, form)
}

async fn watch(client: &Client, args: &StatsArgs, form: Form) -> Result<u8> {
    let live = !args.once && form == Form::Text && std::io::stdout().is_terminal();
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let mut before = measure(client, args, &BTreeMap::new()).await?;
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            number = interrupts.next() => return Ok(if live { 0 } else { 128 + u8::try_from(number).unwrap_or(0) }),
        }
        let samples = measure(client, args, &before).await?;
        let printed = match form {
            Form::Json => {
                report::document(&json!({ "sandboxes": samples.values().map(described).collect::<Vec<_>>() }))
            }
            _ if live => report::print(&format!("{CLEAR}{}", table(&samples))),
            _ => report::print(&table(&samples)),
        };
        if !live || printed.is_err() {
            return Ok(report::printed(printed, 0));
        }
        before = samples;
    }
}

/// Measures the sandboxes, by their ids.
async fn measure(
    client: &Client,
    args: &StatsArgs,
    before: &BTreeMap<String, Sample>,
) -> Result<BTreeMap<String, Sample>> {
    let mut samples = BTreeMap::new();
    for sandbox in wanted(client, args).await? {
        let path = format!("/v1/sandboxes/{}/stats", encoded(&sandbox.id));
        let stats: StatsView = match client.call(Method::GET, &path, None::<&()>).await {
            // It was closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::Closed => continue,
            stats => stats?,
        };
        let at = Instant::now();
        let cpu_percent = before.get(&sandbox.id).and_then(|before| percent(before, &stats, at));
        samples.insert(sandbox.id.clone(), Sample { sandbox, stats, at, cpu_percent });
    }
    Ok(samples)
}

async fn wanted(client: &Client, args: &StatsArgs) -> Result<Vec<SandboxView>> {
    if args.sandboxes.is_empty() {
        return all(client).await;
    }
    let mut wanted = Vec::new();
    for sandbox in &args.sandboxes {
        let path = format!("/v1/sandboxes/{}", encoded(sandbox));
        wanted.push(client.call(Method::GET, &path, None::<&()>).await?);
    }
    Ok(wanted)
}

fn percent(before: &Sample, stats: &StatsView, at: Instant) -> Option<f64> {
    let used = stats.usage.cpu_seconds? - before.stats.usage.cpu_seconds?;
    let time = at.duration_since(before.at).as_secs_f64();
    (time > 0.0).then(|| used.max(0.0) / time * 100.0)
}

fn described(sample: &Sample) -> Value {
    json!({ "id": sample.sandbox.id, "name": sample.sandbox.name, "usage": sample.stats.usage, "network": sample.stats.network,
        "limits": sample.stats.limits, "cpu_percent": sample.cpu_percent })
}

fn table(samples: &BTreeMap<String, Sample>) -> String {
    let mut table = format!(
        "{:<46}  {:<16}  {:>7}  {:>9}  {:>24}  {:>9}  {:>24}  {:>20}\n",
        "ID", "NAME", "CPU %", "CPU TIME", "MEMORY / LIMIT", "PIDS", "DISK / LIMIT", "NET SENT / RECEIVED"
    );
    for Sample { sandbox, stats, cpu_percent, .. } in samples.values() {
        let (usage, limits) = (&stats.usage, &stats.limits);
        let of = |used: Option<u64>, limit: Option<ByteSize>| {
            let used = shown(used.map(ByteSize::from_bytes));
            format!("{used} / {}", limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string()))
        };
        let row = format!(
            "{:<46}  {:<16}  {:>7}  {:>9}  {:>24}  {:>9}  {:>24}  {:>20}",
            sandbox.id,
            sandbox.name.as_deref().unwrap_or("-"),
            shown(cpu_percent.map(|percent| format!("{percent:.1}"))),
            shown(usage.cpu_seconds.map(|seconds| format!("{seconds:.2} s"))),
            of(usage.memory_bytes, limits.memory),
            shown(usage.processes),
            of(usage.disk_bytes, limits.disk),
            shown(stats.network.map(|network| {
                let size = ByteSize::from_bytes;
                format!("{} / {}", size(network.sent_bytes), size(network.received_bytes))
            })),
        );
        table.push_str(&format!("{}\n", one_line(row.trim_end())));
    }
    table
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

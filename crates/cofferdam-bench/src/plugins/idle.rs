//! Memory of idle plugins: their processes, the host's process, and all that the machine has less.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use cofferdam::plugins::LoadOptions;
use serde_json::{Value, json};

use super::contestant::LANGUAGES;
use super::host;
use crate::host::{kernel, tree};
use crate::sample::tenths;

/// A plugin in a shell, with no method that is called.
const SHELL: (&str, &str) = ("idle.sh", include_str!("programs/idle.sh"));
/// Divisor of the machine's memory that must stay available.
const MIN_AVAILABLE_DIVISOR: u64 = 10;
/// The time for preparations in the background, so that they count before and after.
const SETTLE: Duration = Duration::from_secs(2);

/// The memory of idle plugins of one kind.
#[derive(Debug)]
pub struct Idle {
    /// The kind.
    pub kind: &'static str,
    /// The number of plugins that were held.
    pub held: usize,
    /// The number that was requested.
    pub wanted: usize,
    /// The figures, with KiB of each plugin. `None` if this user may not read them.
    pub rows: [(&'static str, Option<f64>); 3],
}

impl Idle {
    /// Returns the figures as JSON.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> =
            self.rows.iter().map(|(name, each)| json!({"name": name, "each_kib": each.map(tenths)})).collect();
        json!({"kind": self.kind, "wanted": self.wanted, "held": self.held, "rows": rows})
    }
}

/// Holds plugins in a shell.
pub async fn shell(directory: &Path, wanted: usize) -> Result<Idle> {
    let manifest = "runtime = \"command\"\nentry = [\"/bin/sh\", \"/workspace/idle.sh\"]\n[methods.none]";
    hold("shell", directory, wanted, manifest, SHELL).await
}

/// Holds plugins of the SDK for Python.
pub async fn python(directory: &Path, wanted: usize) -> Result<Idle> {
    let [python, _] = LANGUAGES;
    let manifest = format!("{}\n[methods.echo]\n[methods.stream]", python.manifest);
    hold("python", directory, wanted, &manifest, python.plugin).await
}

/// Loads and starts plugins of one package each, and reads the memory before and while they are idle.
async fn hold(kind: &'static str, directory: &Path, wanted: usize, manifest: &str, file: (&str, &str)) -> Result<Idle> {
    let host = host::open(directory)?;
    // The first one starts what all share.
    start(&host, directory, "first", manifest, file).await?;
    tokio::time::sleep(SETTLE).await;
    let before = read();
    let mut held = 0;
    while held < wanted {
        let now = kernel::memory();
        if now.available < now.total / MIN_AVAILABLE_DIVISOR {
            break;
        }
        start(&host, directory, &format!("idle-{held}"), manifest, file).await?;
        held += 1;
    }
    ensure!(held > 0, "only {} MiB of memory are left", kernel::memory().available / 1024);
    tokio::time::sleep(SETTLE).await;
    let after = read();
    host::close(host).await;
    let names = ["plugins and their sandboxes, PSS", "host process, PSS", "machine, not available"];
    let each = |at: usize| Some((after[at]? as f64 - before[at]? as f64) / held as f64);
    Ok(Idle { kind, held, wanted, rows: [0, 1, 2].map(|at| (names[at], each(at))) })
}

async fn start(
    host: &cofferdam::plugins::Host,
    directory: &Path,
    name: &str,
    manifest: &str,
    file: (&str, &str),
) -> Result<()> {
    let package = host::package(directory, name, manifest, file)?;
    host.load(&package, LoadOptions::default()).await?;
    host.prepare(name).await?;
    host::ready(host, name).await
}

/// Returns the figures now, in KiB.
fn read() -> [Option<u64>; 3] {
    let memory = kernel::memory();
    let proportional = |pids: &[u32]| tree::memory(pids).map(|memory| memory.proportional);
    [
        proportional(&tree::descendants()),
        proportional(&[std::process::id()]),
        Some(memory.total.saturating_sub(memory.available)),
    ]
}

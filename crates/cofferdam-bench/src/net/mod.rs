//! The network of sandboxes: a client without a sandbox, in process sandboxes through the gateway, and in a namespace of
//! `pasta`, in one run and the same namespaces.

mod wire;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cofferdam_contract::{Access, Backend, ExecRequest, Limits, NetworkPolicy, Spec, Workspace};
use cofferdam_process::ProcessBackend;
use serde_json::{Value, json};

use crate::host::facts::{self, Facts};
use crate::options::NetOptions;
use crate::ours;
use crate::program::installed;
use crate::results::{self, File};
use crate::sample::{Sample, hundredths};
use crate::target::{Bound, Row, json_of, render};
use wire::{Load, NAME, PORTS};

/// The address of the servers.
const SERVERS: &str = "11.22.33.44";
/// The program in the mounted directory.
const CLIENT: &str = "client";
const PROTOCOLS: [&str; 3] = ["HTTP", "TLS passed through", "lines over TCP"];
/// The ways from the client to the servers.
const WAYS: [&str; 3] = ["direct", "sandbox", "pasta"];
/// The number of connections for each measurement, below the burst that the gateway accepts.
const CONNECTIONS: u32 = 40;
const TIMEOUT: Duration = Duration::from_secs(120);
/// The same for the peer, which may not work where this runs.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// Measures, prints and writes the results. Runs itself again in namespaces of its own first.
pub fn run(options: &NetOptions, out: &Path) -> Result<()> {
    if let Some(directory) = &options.serve {
        return wire::serve(SERVERS, directory);
    }
    if let Some(port) = options.load {
        let directory = std::env::current_exe()?.parent().context("the program has no directory")?.to_owned();
        return wire::load(load(options, port), &directory);
    }
    match &options.inside {
        Some(directory) => measure_inside(options, directory, out),
        None => enter(options, out),
    }
}

fn load(options: &NetOptions, port: u16) -> Load {
    let (time, mebibytes) = if options.quick { (Duration::from_secs(1), 64) } else { (Duration::from_secs(3), 256) };
    Load { port, time, connections: CONNECTIONS, bytes: mebibytes << 20 }
}

fn enter(options: &NetOptions, out: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root can create the servers' network; run it as root");
    let directory = tempfile::Builder::new().prefix("cofferdam-net-").tempdir_in("/var/tmp")?;
    let program = std::env::current_exe()?;
    fs::copy(&program, directory.path().join(CLIENT))?;
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    fs::write(directory.path().join("place.sh"), include_str!("place.sh"))?;
    let mut place = Command::new("unshare");
    place.args(["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "sh"]);
    place.arg(directory.path().join("place.sh")).arg(directory.path()).arg(program).arg("--out").arg(out);
    place.arg("net").arg("--inside").arg(directory.path()).args(options.quick.then_some("--quick"));
    let status = place.status().context("cannot start unshare")?;
    ensure!(status.success(), "the benchmark failed: {status}");
    Ok(())
}

/// The results of a run.
#[derive(Debug)]
struct Report {
    /// Figures of each protocol and way.
    figures: Vec<(usize, usize, Value)>,
    absent: Vec<String>,
    /// Times to create a sandbox without a policy, and with one.
    creates: [Sample; 2],
}

fn measure_inside(options: &NetOptions, directory: &Path, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(measure(options, directory))?;
    let file = File::json(&format!("net-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

fn spec(directory: &Path, with_policy: bool) -> Result<Spec> {
    let workspace = Workspace::HostDir { path: directory.to_owned(), access: Access::ReadOnly };
    let limits = Limits { cpu_time: Some(TIMEOUT), wall_time: TIMEOUT, ..Limits::default() };
    let hosts = PORTS.iter().map(|port| format!("{NAME}:{port}")).collect();
    let policy = if with_policy { NetworkPolicy::Allow { hosts } } else { NetworkPolicy::None };
    Ok(Spec::builder().workspace(workspace).limits(limits).network(policy).build()?)
}

async fn measure(options: &NetOptions, directory: &Path) -> Result<Report> {
    let backend = ours::backend().await?;
    let mut absent = Vec::new();
    let mut figures = Vec::new();
    for (way, name) in WAYS.iter().enumerate() {
        if *name == "pasta" && !installed("pasta") {
            absent.push("pasta: install passt".to_owned());
            continue;
        }
        for (protocol, port) in PORTS.into_iter().enumerate() {
            match once(way, port, options, directory, &backend).await {
                Ok(value) => figures.push((protocol, way, value)),
                Err(error) if *name == "pasta" => absent.push(format!("pasta, {}: {error:#}", PROTOCOLS[protocol])),
                Err(error) => return Err(error.context(format!("{name}, {}", PROTOCOLS[protocol]))),
            }
        }
    }
    let rounds = if options.quick { 50 } else { 300 };
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..2 * rounds {
        let with_policy = round % 2 == 1;
        let spec = spec(directory, with_policy)?;
        let start = Instant::now();
        let sandbox = backend.create(spec).await?;
        times[usize::from(with_policy)].push(start.elapsed());
        sandbox.close().await?;
    }
    Ok(Report { figures, absent, creates: times.map(Sample::new) })
}

/// Runs the client once, and returns its figures.
async fn once(
    way: usize,
    port: u16,
    options: &NetOptions,
    directory: &Path,
    backend: &Arc<ProcessBackend>,
) -> Result<Value> {
    let port = port.to_string();
    let mut words = vec!["net", "--load", &port];
    words.extend(options.quick.then_some("--quick"));
    let stdout = if WAYS[way] == "sandbox" {
        let sandbox = backend.create(spec(directory, true)?).await?;
        let argv = std::iter::once("/workspace/client").chain(words);
        let done = sandbox.exec(ExecRequest::argv(argv).timeout(TIMEOUT).build()?).await?;
        sandbox.close().await?;
        ensure!(done.exit.success(), "the client failed: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout.to_vec()
    } else {
        let client = directory.join(CLIENT);
        let mut command = match WAYS[way] {
            "pasta" => {
                let mut pasta = tokio::process::Command::new("pasta");
                pasta.args(["--config-net", "--quiet", "--"]).arg(client);
                pasta
            }
            _ => tokio::process::Command::new(client),
        };
        let limit = if WAYS[way] == "pasta" { PEER_TIMEOUT } else { TIMEOUT };
        let output = tokio::time::timeout(limit, command.args(words).kill_on_drop(true).output()).await??;
        ensure!(output.status.success(), "the client failed: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    serde_json::from_slice(&stdout).context("the client printed no figures")
}

impl Report {
    fn figure(&self, protocol: usize, way: usize, name: &str) -> Option<f64> {
        let found = self.figures.iter().find(|(of, by, _)| (*of, *by) == (protocol, way));
        found.and_then(|(_, _, value)| value[name].as_f64())
    }

    fn ratio(&self, protocol: usize, way: usize, name: &str) -> Option<f64> {
        Some(self.figure(protocol, way, name)? / self.figure(protocol, 0, name)?)
    }

    fn targets(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (protocol, title) in PROTOCOLS.iter().enumerate() {
            for (name, what) in [("per_second", "requests a second"), ("mebibytes_per_second", "download")] {
                let measured = self.ratio(protocol, 1, name);
                rows.push(Row { what: format!("{title}: {what} / direct"), bound: Bound::AtLeast(0.5), measured });
            }
        }
        let more = (self.creates[1].median() - self.creates[0].median()) / 1000.0;
        let what = "create with a policy, ms more".to_owned();
        rows.push(Row { what, bound: Bound::AtMost(1.0), measured: Some(more) });
        rows
    }

    fn table(&self, facts: &Facts) -> String {
        let mut text = format!("{}\n\n", facts.line());
        let heads = ["requests/s", "median us", "p99 us", "new: us", "p99 us", "MiB/s"];
        let _ = write!(text, "{:29}", "");
        heads.iter().for_each(|head| text.push_str(&format!(" {head:>10}")));
        text.push('\n');
        let names = ["per_second", "median_us", "p99_us", "new_median_us", "new_p99_us", "mebibytes_per_second"];
        for (protocol, way, value) in &self.figures {
            let _ = write!(text, "{:29}", format!("{}, {}", PROTOCOLS[*protocol], WAYS[*way]));
            names
                .iter()
                .for_each(|name| text.push_str(&format!(" {:10.0}", value[*name].as_f64().unwrap_or(f64::NAN))));
            text.push('\n');
        }
        let [without, with] = &self.creates;
        let (without, with) = (without.median(), with.median());
        let _ = writeln!(text, "\ncreate: {without:.0} us without a policy, {with:.0} us with one");
        self.absent.iter().for_each(|why| text.push_str(&format!("not measured: {why}\n")));
        text + &render(&self.targets())
    }

    fn json(&self, facts: &Facts) -> Value {
        let rows = self.figures.iter().map(|(protocol, way, value)| {
            let ratio = self.ratio(*protocol, *way, "per_second").map(hundredths);
            json!({ "protocol": PROTOCOLS[*protocol], "way": WAYS[*way], "figures": value, "ratio": ratio })
        });
        json!({
            "benchmark": "net",
            "machine": facts.json(),
            "results": rows.collect::<Vec<_>>(),
            "create": { "without": self.creates[0].json(), "with": self.creates[1].json() },
            "absent": self.absent,
            "targets": json_of(&self.targets()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_compared_with_a_client_without_a_sandbox() {
        let figure = |per_second| json!({ "per_second": per_second, "mebibytes_per_second": 100.0 });
        let report = Report {
            figures: vec![(0, 0, figure(1000.0)), (0, 1, figure(400.0))],
            absent: vec!["pasta: install passt".to_owned()],
            creates: [1000, 1500].map(|micros| Sample::new(vec![Duration::from_micros(micros)])),
        };
        let text = report.table(&facts::collect());
        let row = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(row("HTTP: requests a second / direct").ends_with("0.40 missed"), "{text}");
        assert!(row("create with a policy").ends_with("0.50 met"), "{text}");
        assert!(text.contains("not measured: pasta: install passt"), "{text}");
    }
}

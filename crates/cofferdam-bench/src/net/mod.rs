//! The network of sandboxes: a client without a sandbox, in process sandboxes through the gateway, in a namespace of
//! `pasta`, and in bubblewrap with slirp4netns, in one run and the same namespaces.

mod wire;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cofferdam_contract::{Access, Backend, ExecRequest, Limits, NetworkPolicy, Sandbox, Spec, Workspace};
use cofferdam_process::ProcessBackend;
use serde_json::{Value, json};

use crate::host::facts::{self, Facts};
use crate::options::NetOptions;
use crate::process_backend;
use crate::program::installed;
use crate::results::{self, File};
use crate::sample::{Sample, hundredths};
use crate::target::{Bound, Row, json_of, render};
use wire::{Load, NAME, PORTS};

/// The address of the servers.
const SERVERS: &str = "11.22.33.44";
/// The program in the mounted directory.
const CLIENT: &str = "client";
/// The figures of a table, as the client names them.
const FIGURES: [&str; 6] = ["per_second", "median_us", "p99_us", "new_median_us", "new_p99_us", "mebibytes_per_second"];
const PROTOCOLS: [&str; 3] = ["HTTP", "TLS passed through", "lines over TCP"];
/// The ways from the client to the servers.
const WAYS: [&str; 4] = ["direct", "sandbox", "pasta", "bwrap+slirp4netns"];
/// The peers among the ways: the program, and the package that has it.
const PEERS: [(&str, &str); 2] = [("pasta", "passt"), ("slirp4netns", "slirp4netns")];
const DIRECT: usize = 0;
const SANDBOX: usize = 1;
/// The number of connections that have a request at a time.
const CLIENTS: usize = 8;
/// The number of connections for each measurement, below the burst that the gateway accepts.
const CONNECTIONS: u32 = 40;
/// The number of sandboxes at once, and of clients without a sandbox that they are compared with.
const MANY: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(120);
/// The same for the peers, which may not work where this runs.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

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
    match options.of_many {
        true => Load { port, time: 2 * time, clients: 1, connections: 0, bytes: 0, waits: true },
        false => Load { port, time, clients: CLIENTS, connections: CONNECTIONS, bytes: mebibytes << 20, waits: false },
    }
}

fn enter(options: &NetOptions, out: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root can create the servers' network; run it as root");
    let directory = tempfile::Builder::new().prefix("cofferdam-net-").tempdir_in("/var/tmp")?;
    let program = std::env::current_exe()?;
    fs::copy(&program, directory.path().join(CLIENT))?;
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    fs::write(directory.path().join("network.sh"), include_str!("network.sh"))?;
    fs::write(directory.path().join("slirp.sh"), include_str!("slirp.sh"))?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "sh"]);
    command.arg(directory.path().join("network.sh")).arg(directory.path()).arg(program).arg("--out").arg(out);
    command.arg("net").arg("--inside").arg(directory.path()).args(options.quick.then_some("--quick"));
    let status = command.status().context("cannot start unshare")?;
    ensure!(status.success(), "the benchmark failed: {status}");
    Ok(())
}

/// The results of a run.
#[derive(Debug, Default)]
struct Report {
    /// Figures of each protocol and way, of all rounds.
    figures: Vec<(usize, usize, Vec<Value>)>,
    unavailable: Vec<String>,
    /// Requests a second of each of many clients, without a sandbox and in one each.
    many: [Vec<f64>; 2],
    /// Times to create a sandbox without a policy, and with one.
    creates: [Sample; 2],
}

fn measure_inside(options: &NetOptions, directory: &Path, out: &Path) -> Result<()> {
    let facts = facts::collect();
    // As `cofferdam run` has it: the gateway is on one thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
    let backend = process_backend::backend().await?;
    let mut report = Report::default();
    let mut ways: Vec<usize> = vec![DIRECT, SANDBOX];
    for (at, (program, package)) in PEERS.iter().enumerate() {
        match installed(program) {
            true => ways.push(SANDBOX + 1 + at),
            false => report.unavailable.push(format!("{program}: install {package}")),
        }
    }
    let rounds = if options.quick { 1 } else { 3 };
    for (protocol, port) in PORTS.into_iter().enumerate() {
        let mut found = vec![Vec::new(); WAYS.len()];
        for _ in 0..rounds {
            for &way in &ways {
                match once(way, port, options, directory, &backend).await {
                    Ok(value) => found[way].push(value),
                    Err(error) if way > SANDBOX => {
                        report.unavailable.push(format!("{}, {}: {error:#}", WAYS[way], PROTOCOLS[protocol]));
                    }
                    Err(error) => return Err(error.context(format!("{}, {}", WAYS[way], PROTOCOLS[protocol]))),
                }
            }
        }
        let found = found.into_iter().enumerate().filter(|(_, values)| !values.is_empty());
        report.figures.extend(found.map(|(way, values)| (protocol, way, values)));
    }
    for way in [DIRECT, SANDBOX] {
        report.many[way] = many(way, options, directory, &backend).await?;
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
    report.creates = times.map(Sample::new);
    Ok(report)
}

/// Runs the client once, and returns its figures.
async fn once(
    way: usize,
    port: u16,
    options: &NetOptions,
    directory: &Path,
    backend: &Arc<ProcessBackend>,
) -> Result<Value> {
    let mut words = vec!["net".to_owned(), "--load".to_owned(), port.to_string()];
    words.extend(options.quick.then(|| "--quick".to_owned()));
    if way == SANDBOX {
        let sandbox = backend.create(spec(directory, true)?).await?;
        let done = in_sandbox(&*sandbox, &words).await;
        sandbox.close().await?;
        return done;
    }
    let client = directory.join(CLIENT);
    let (mut command, limit) = match WAYS[way] {
        "direct" => (tokio::process::Command::new(client), TIMEOUT),
        "pasta" => {
            let mut pasta = tokio::process::Command::new("pasta");
            // The servers are at the address of the router, which pasta would take for this host.
            pasta.args(["--config-net", "--runas", "0", "--quiet", "--no-map-gw"]);
            pasta.args(["-t", "none", "-u", "none", "-T", "none", "-U", "none", "--"]).arg(client);
            (pasta, PEER_TIMEOUT)
        }
        _ => {
            // SIGKILL would leave its children behind.
            let mut slirp = tokio::process::Command::new("timeout");
            slirp.arg((PEER_TIMEOUT.as_secs() - 2).to_string()).arg("sh");
            slirp.arg(directory.join("slirp.sh")).arg(directory).arg(client);
            (slirp, PEER_TIMEOUT)
        }
    };
    let output = tokio::time::timeout(limit, command.args(words).kill_on_drop(true).output()).await??;
    ensure!(output.status.success(), "the client failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("the client printed no figures")
}

async fn in_sandbox(sandbox: &dyn Sandbox, words: &[String]) -> Result<Value> {
    let argv = std::iter::once("/workspace/client").chain(words.iter().map(String::as_str));
    let done = sandbox.exec(ExecRequest::argv(argv).timeout(TIMEOUT).build()?).await?;
    ensure!(done.exit.success(), "the client failed: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).context("the client printed no figures")
}

/// Runs many clients at once, and returns the requests a second of each.
async fn many(way: usize, options: &NetOptions, directory: &Path, backend: &Arc<ProcessBackend>) -> Result<Vec<f64>> {
    let mut words = vec!["net".to_owned(), "--of-many".to_owned(), "--load".to_owned(), PORTS[0].to_string()];
    words.extend(options.quick.then(|| "--quick".to_owned()));
    let go = directory.join(wire::GO);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..MANY {
        let words = words.clone();
        if way == SANDBOX {
            let sandbox = backend.create(spec(directory, true)?).await?;
            clients.spawn(async move {
                let done = in_sandbox(&*sandbox, &words).await;
                sandbox.close().await?;
                done
            });
        } else {
            let mut command = tokio::process::Command::new(directory.join(CLIENT));
            let running = command.args(words).kill_on_drop(true).output();
            clients.spawn(async move {
                let output = tokio::time::timeout(TIMEOUT, running).await??;
                ensure!(output.status.success(), "a client failed: {}", String::from_utf8_lossy(&output.stderr));
                serde_json::from_slice(&output.stdout).context("the client printed no figures")
            });
        }
    }
    // All are connected by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    fs::write(&go, "")?;
    let mut figures = Vec::new();
    while let Some(done) = clients.join_next().await {
        figures.push(done??["per_second"].as_f64().context("no requests a second")?);
    }
    fs::remove_file(&go)?;
    figures.sort_by(f64::total_cmp);
    Ok(figures)
}

impl Report {
    /// Returns the median of a figure over all rounds.
    fn figure(&self, protocol: usize, way: usize, name: &str) -> Option<f64> {
        let (_, _, values) = self.figures.iter().find(|(of, by, _)| (*of, *by) == (protocol, way))?;
        let mut found: Vec<f64> = values.iter().filter_map(|value| value[name].as_f64()).collect();
        found.sort_by(f64::total_cmp);
        found.get(found.len() / 2).copied()
    }

    fn ratio(&self, protocol: usize, way: usize, to: usize, name: &str) -> Option<f64> {
        Some(self.figure(protocol, way, name)? / self.figure(protocol, to, name)?)
    }

    fn targets(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (protocol, title) in PROTOCOLS.iter().enumerate() {
            for (name, what) in [("per_second", "requests a second"), ("mebibytes_per_second", "download")] {
                for (to, bound) in [(DIRECT, 0.5), (SANDBOX + 1, 1.0), (SANDBOX + 2, 1.0)] {
                    let what = format!("{title}: {what} / {}", WAYS[to]);
                    let measured = self.ratio(protocol, SANDBOX, to, name);
                    rows.push(Row { what, bound: Bound::AtLeast(bound), measured });
                }
            }
        }
        let [direct, sandboxes] = &self.many;
        let sum = |of: &[f64]| of.iter().sum::<f64>();
        let measured = (!direct.is_empty()).then(|| sum(sandboxes) / sum(direct));
        rows.push(Row { what: format!("{MANY} sandboxes at once / direct"), bound: Bound::AtLeast(0.5), measured });
        let what = format!("{MANY} sandboxes at once: slowest / median");
        rows.push(Row { what, bound: Bound::AtLeast(0.5), measured: share_of_slowest(sandboxes) });
        let more = (self.creates[1].median() - self.creates[0].median()) / 1000.0;
        let what = "create with a policy, ms more".to_owned();
        rows.push(Row { what, bound: Bound::AtMost(1.0), measured: Some(more) });
        rows
    }

    fn table(&self, facts: &Facts) -> String {
        let mut text =
            format!("{}\n\n{CLIENTS} connections with a request at a time, medians of all rounds\n", facts.line());
        let heads = ["requests/s", "median us", "p99 us", "new: us", "p99 us", "MiB/s"];
        let _ = write!(text, "{:39}", "");
        heads.iter().for_each(|head| text.push_str(&format!(" {head:>10}")));
        text.push('\n');
        for (protocol, way, _) in &self.figures {
            let _ = write!(text, "{:39}", format!("{}, {}", PROTOCOLS[*protocol], WAYS[*way]));
            FIGURES.iter().for_each(|name| {
                let value = self.figure(*protocol, *way, name).unwrap_or(f64::NAN);
                text.push_str(&format!(" {value:10.0}"));
            });
            text.push('\n');
        }
        text.push('\n');
        for (way, figures) in self.many.iter().enumerate().filter(|(_, figures)| !figures.is_empty()) {
            let (slowest, median, fastest) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
            let _ = writeln!(
                text,
                "{MANY} at once, HTTP, {}: {:.0} requests/s; of one: {slowest:.0} to {fastest:.0}, median {median:.0}",
                WAYS[way],
                figures.iter().sum::<f64>(),
            );
        }
        let [without, with] = &self.creates;
        let (without, with) = (without.median(), with.median());
        let _ = writeln!(text, "create: {without:.0} us without a policy, {with:.0} us with one");
        self.unavailable.iter().for_each(|why| text.push_str(&format!("not measured: {why}\n")));
        text + &render(&self.targets())
    }

    fn json(&self, facts: &Facts) -> Value {
        let rows = self.figures.iter().map(|(protocol, way, rounds)| {
            let ratio = self.ratio(*protocol, *way, DIRECT, "per_second").map(hundredths);
            json!({ "protocol": PROTOCOLS[*protocol], "way": WAYS[*way], "rounds": rounds, "ratio": ratio })
        });
        json!({
            "benchmark": "net",
            "machine": facts.json(),
            "results": rows.collect::<Vec<_>>(),
            "many": { "sandboxes": MANY, "direct": self.many[DIRECT], "sandbox": self.many[SANDBOX] },
            "create": { "without": self.creates[0].json(), "with": self.creates[1].json() },
            "absent": self.unavailable,
            "targets": json_of(&self.targets()),
        })
    }
}

/// Returns the share of the slowest client, of what the median one has. The figures are sorted.
fn share_of_slowest(figures: &[f64]) -> Option<f64> {
    Some(figures.first()? / figures.get(figures.len() / 2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_compared_with_a_client_without_a_sandbox() {
        let figure = |per_second| json!({ "per_second": per_second, "mebibytes_per_second": 100.0 });
        let report = Report {
            figures: vec![
                (0, DIRECT, vec![figure(1000.0), figure(900.0), figure(5000.0)]),
                (0, SANDBOX, vec![figure(400.0)]),
                (0, 2, vec![figure(500.0)]),
            ],
            unavailable: vec!["slirp4netns: install slirp4netns".to_owned()],
            many: [vec![10.0, 10.0], vec![3.0, 6.0, 6.0]],
            creates: [1000, 1500].map(|micros| Sample::new(vec![Duration::from_micros(micros)])),
        };
        let text = report.table(&facts::collect());
        let row = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(row("HTTP: requests a second / direct").ends_with("0.40 missed"), "{text}");
        assert!(row("HTTP: requests a second / pasta").ends_with("0.80 missed"), "{text}");
        assert!(row("100 sandboxes at once / direct").ends_with("0.75 met"), "{text}");
        assert!(row("100 sandboxes at once: slowest").ends_with("0.50 met"), "{text}");
        assert!(row("create with a policy").ends_with("0.50 met"), "{text}");
        assert!(text.contains("not measured: slirp4netns: install slirp4netns"), "{text}");
    }
}

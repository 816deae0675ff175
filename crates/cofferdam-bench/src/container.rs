//! Time of `true` in containers: in a new container, in a live one, and in a prepared one. Compared with the engine's
//! own command line with the same hardening, in one run.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use cofferdam::registry::images::{BASE_IMAGE, BaseImage, Images};
use cofferdam::registry::{self, CONTAINER_BACKEND, ContainerSettings, Setup};
use cofferdam_contract::{Backend, Sandbox, Spec};
use cofferdam_engine::{PoolConfig, PooledBackend};
use serde_json::{Value, json};

use crate::host::facts::{self, Facts};
use crate::options::ContainerOptions;
use crate::process_backend;
use crate::program::{Keep, run as run_program};
use crate::results::{self, File};
use crate::rounds::{Orders, takes_part, turns};
use crate::sample::{Sample, hundredths};
use crate::target::{Bound, Row, json_of, render};

/// The program that runs.
const PROGRAM: &str = "/bin/true";
/// Maximum wait for a prepared container of the pool.
const REFILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A way to run the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contestant {
    DockerRun,
    Run,
    CommandLine,
    DockerExec,
    Exec,
    Claim,
}

impl Contestant {
    const ALL: [Self; 6] = [Self::DockerRun, Self::Run, Self::CommandLine, Self::DockerExec, Self::Exec, Self::Claim];

    fn name(self) -> &'static str {
        match self {
            Self::DockerRun => "docker run --rm, as hardened",
            Self::Run => "cofferdam: create, run, destroy",
            Self::CommandLine => "cofferdam run --backend docker",
            Self::DockerExec => "docker exec into a live container",
            Self::Exec => "cofferdam: exec into a live one",
            Self::Claim => "cofferdam: claim, exit reported",
        }
    }

    fn slug(self) -> &'static str {
        match self {
            Self::DockerRun => "docker-run",
            Self::Run => "run",
            Self::CommandLine => "cli",
            Self::DockerExec => "docker-exec",
            Self::Exec => "exec",
            Self::Claim => "claim",
        }
    }

    /// Returns the contestant for comparison.
    fn base(self) -> Self {
        match self {
            Self::DockerExec | Self::Exec => Self::DockerExec,
            _ => Self::DockerRun,
        }
    }
}

/// Measures, prints and writes the results.
pub fn run(options: &ContainerOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(options))?;
    let file = File::json(&format!("container-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

/// The results of a run.
#[derive(Debug)]
struct Report {
    /// The engine, as its own command line names it.
    engine: String,
    results: Vec<(Contestant, Sample)>,
    unavailable: Vec<(Contestant, String)>,
}

struct Field {
    socket: String,
    backend: Arc<dyn Backend>,
    live: Arc<dyn Sandbox>,
    pool: PooledBackend,
    command_line: PathBuf,
    /// A container created by the engine's command line.
    container: Option<String>,
}

/// Returns the options of `docker run` for the same hardening as Cofferdam's.
fn hardening() -> Vec<String> {
    let words = "--init --network=none --read-only --cap-drop=ALL --security-opt=no-new-privileges --user=64000:64000 --ipc=private \
                 --memory=512m --memory-swap=512m --pids-limit=11 --tmpfs=/workspace:size=704m,mode=1777 \
                 --tmpfs=/tmp:size=256m --shm-size=64m --log-driver=none --workdir=/workspace";
    words.split_whitespace().map(str::to_owned).collect()
}

impl Field {
    async fn prepare(options: &ContainerOptions) -> Result<Self> {
        let host = options.host.clone().or_else(|| std::env::var("DOCKER_HOST").ok());
        let host = host.or_else(|| std::env::var("COFFERDAM_TEST_DOCKER").ok());
        let containers = ContainerSettings { host, ..Setup::from_environment()?.containers };
        let socket = containers.host.clone().unwrap_or_else(|| "/var/run/docker.sock".to_owned());
        let images = Images::new(&containers)?;
        if !images.list().await?.iter().any(|image| image.names.iter().any(|name| name == BASE_IMAGE)) {
            println!("== create the base image");
            images.build_base(&BaseImage::default(), BASE_IMAGE, Arc::new(|_| {})).await?;
        }
        let backend = registry::backend_with(CONTAINER_BACKEND, &containers.clone().into())?;
        let live = backend.create(Spec::default()).await?;
        let config = PoolConfig { min_warm: 1, max_warm: 1, ..PoolConfig::default() };
        let pool = PooledBackend::new(Arc::clone(&backend), Spec::default(), config)?;
        let beside = std::env::current_exe()?.with_file_name("cofferdam");
        let command_line = options.command_line.clone().unwrap_or(beside);
        Ok(Self { socket, backend, live, pool, command_line, container: None })
    }

    fn docker(&self, words: &[&str]) -> Vec<String> {
        let address =
            if self.socket.starts_with('/') { format!("unix://{}", self.socket) } else { self.socket.clone() };
        ["docker", "-H"]
            .into_iter()
            .map(str::to_owned)
            .chain([address])
            .chain(words.iter().map(|word| (*word).to_owned()))
            .collect()
    }

    fn docker_run(&self, options: &[&str], command: &[&str]) -> Vec<String> {
        let mut line = self.docker(&["run"]);
        line.extend(options.iter().map(|word| (*word).to_owned()));
        line.extend(hardening());
        line.push(BASE_IMAGE.to_owned());
        line.extend(command.iter().map(|word| (*word).to_owned()));
        line
    }

    /// Starts a container for `docker exec`.
    async fn start_container(&mut self) -> Result<(), String> {
        let name = format!("cofferdam-bench-{}", std::process::id());
        let line = self.docker_run(&["--detach", "--rm", "--name", &name], &["sleep", "100000"]);
        crate::program::succeeds(&line).await?;
        self.container = Some(name);
        Ok(())
    }

    /// Runs and times one turn, without its setup and cleanup.
    async fn turn(&self, contestant: Contestant) -> Result<Duration> {
        let request = || process_backend::request(&[PROGRAM]);
        if contestant == Contestant::Claim {
            self.refilled().await?;
        }
        let start = Instant::now();
        let failed = |why: String| anyhow!("{}: {why}", contestant.name());
        match contestant {
            Contestant::DockerRun => {
                run_program(&self.docker_run(&["--rm"], &[PROGRAM]), "", Keep::Output).await.map_err(failed)?;
            }
            Contestant::DockerExec => {
                let name = self.container.as_deref().context("no container")?;
                run_program(&self.docker(&["exec", name, PROGRAM]), "", Keep::Output).await.map_err(failed)?;
            }
            Contestant::CommandLine => {
                let mut command = tokio::process::Command::new(&self.command_line);
                command.args(["run", "--use-server", "never", "--backend", CONTAINER_BACKEND, "--", PROGRAM]);
                command.env("DOCKER_HOST", &self.socket).stdin(Stdio::null()).kill_on_drop(true);
                let output = command.output().await?;
                ensure!(output.status.success(), "{}: {}", contestant.name(), String::from_utf8_lossy(&output.stderr));
            }
            Contestant::Run => {
                let (done, _) = self.backend.run(Spec::default(), request()?).await?;
                ensure!(done.exit.success(), "{:?}", done.exit);
            }
            Contestant::Exec => {
                let done = self.live.exec(request()?).await?;
                ensure!(done.exit.success(), "{:?}", done.exit);
            }
            Contestant::Claim => {
                let lease = self.pool.pool().claim(Spec::default()).await?;
                let done = lease.exec(request()?).await?;
                let took = start.elapsed();
                ensure!(done.exit.success(), "{:?}", done.exit);
                lease.close().await?;
                // The refill for the next claim must not disturb another turn.
                self.refilled().await?;
                return Ok(took);
            }
        }
        Ok(start.elapsed())
    }

    async fn refilled(&self) -> Result<()> {
        let deadline = Instant::now() + REFILL_TIMEOUT;
        loop {
            let metrics = self.pool.pool().metrics();
            if metrics.warm > 0 && metrics.closing == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the pool prepares no sandbox");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(self) -> Result<()> {
        self.live.close().await?;
        self.pool.pool().shutdown(REFILL_TIMEOUT).await?;
        if let Some(name) = &self.container {
            crate::program::succeeds(&self.docker(&["rm", "--force", name])).await.map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }
}

async fn measure(options: &ContainerOptions) -> Result<Report> {
    let mut field = Field::prepare(options).await?;
    let (rounds, share) = if options.quick { (30, Duration::from_secs(8)) } else { (100, Duration::from_secs(60)) };
    let rounds = options.n.map_or(rounds, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut unavailable = Vec::new();
    if let Err(why) = field.start_container().await {
        unavailable.push((Contestant::DockerExec, why));
    }
    let outcome = rounds_of(&field, rounds, share, &mut unavailable).await;
    let version = field.docker(&["version", "--format", "{{.Server.Version}}"]);
    let engine = tokio::process::Command::new(&version[0]).args(&version[1..]).output().await;
    let engine = engine.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    field.end().await?;
    Ok(Report { engine, results: outcome?, unavailable })
}

async fn rounds_of(
    field: &Field,
    rounds: usize,
    share: Duration,
    unavailable: &mut Vec<(Contestant, String)>,
) -> Result<Vec<(Contestant, Sample)>> {
    let mut entrants = Vec::new();
    for contestant in Contestant::ALL {
        if unavailable.iter().any(|(other, _)| *other == contestant) {
            continue;
        }
        // The first turn loads what later turns find in memory.
        match field.turn(contestant).await {
            Ok(_) => entrants.push((contestant, turns(field.turn(contestant).await?, share, rounds), Vec::new())),
            Err(why) => unavailable.push((contestant, format!("{why:#}"))),
        }
    }
    let mut orders = Orders::new(entrants.len());
    for round in 0..rounds {
        for index in orders.next() {
            let (contestant, turns, times) = &mut entrants[index];
            if takes_part(round, *turns, rounds) {
                times.push(field.turn(*contestant).await?);
            }
        }
    }
    Ok(entrants.into_iter().map(|(contestant, _, times)| (contestant, Sample::new(times))).collect())
}

impl Report {
    fn median(&self, contestant: Contestant) -> Option<f64> {
        self.results.iter().find(|(other, _)| *other == contestant).map(|(_, sample)| sample.median())
    }

    fn ratio(&self, contestant: Contestant, base: Contestant) -> Option<f64> {
        Some(self.median(contestant)? / self.median(base)?)
    }

    fn targets(&self) -> Vec<Row> {
        use Contestant as C;
        let row = |what: &str, max, contestant, base| Row {
            what: what.to_owned(),
            bound: Bound::AtMost(max),
            measured: self.ratio(contestant, base),
        };
        vec![
            row("create, run, destroy / docker run", 1.0, C::Run, C::DockerRun),
            row("cofferdam run --backend docker / docker run", 1.0, C::CommandLine, C::DockerRun),
            row("exec into a live container / docker exec", 1.0, C::Exec, C::DockerExec),
            row("claim to exit / docker run", 0.1, C::Claim, C::DockerRun),
        ]
    }

    fn table(&self, facts: &Facts) -> String {
        let mut text = format!("{}\nengine {}\n\n", facts.line(), self.engine);
        let _ = writeln!(text, "{:36} {:>5} {:>12} {:>12} {:>9}", "", "n", "median us", "p99 us", "x docker");
        for (contestant, sample) in &self.results {
            let ratio =
                self.ratio(*contestant, contestant.base()).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
            let (median, p99) = (sample.median(), sample.p99());
            let _ = writeln!(text, "{:36} {:5} {median:12.0} {p99:12.0} {ratio:>9}", contestant.name(), sample.len());
        }
        text.push_str("\nof fewer than 100 runs, p99 is the slowest\n");
        for (contestant, why) in &self.unavailable {
            let _ = writeln!(text, "not measured: {}: {why}", contestant.name());
        }
        text + &render(&self.targets())
    }

    fn json(&self, facts: &Facts) -> Value {
        let rows = self.results.iter().map(|(contestant, sample)| {
            json!({
                "name": contestant.slug(),
                "title": contestant.name(),
                "times": sample.json(),
                "ratio": self.ratio(*contestant, contestant.base()).map(hundredths),
            })
        });
        let unavailable =
            self.unavailable.iter().map(|(contestant, why)| json!({ "name": contestant.slug(), "reason": why }));
        json!({
            "benchmark": "container",
            "machine": facts.json(),
            "engine": self.engine,
            "hardening": hardening(),
            "results": rows.collect::<Vec<_>>(),
            "absent": unavailable.collect::<Vec<_>>(),
            "targets": json_of(&self.targets()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contestant_is_compared_with_its_engine_equivalent() {
        let sample = |millis| Sample::new(vec![Duration::from_millis(millis); 5]);
        let report = Report {
            engine: "20.10".to_owned(),
            results: vec![
                (Contestant::DockerRun, sample(400)),
                (Contestant::Run, sample(200)),
                (Contestant::DockerExec, sample(100)),
                (Contestant::Exec, sample(2)),
                (Contestant::Claim, sample(4)),
            ],
            unavailable: vec![(Contestant::CommandLine, "not built".to_owned())],
        };
        let text = report.table(&facts::collect());
        let row = |start: &str| text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(row("create, run, destroy / docker run").ends_with("0.50 met"), "{text}");
        assert!(row("exec into a live container / docker exec").ends_with("0.02 met"), "{text}");
        assert!(row("claim to exit / docker run").ends_with("0.01 met"), "{text}");
        assert!(text.contains("not measured: cofferdam run --backend docker: not built"));
        assert_eq!(report.json(&facts::collect())["results"][1]["ratio"], 0.5);
    }
}

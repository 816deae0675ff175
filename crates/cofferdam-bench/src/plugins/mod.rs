//! Plugins: calls, streams, starts and idle memory of plugins in process sandboxes, compared with programs that echo
//! frames over bare pipes in the same language, and with gRPC over a Unix socket, in one run.

mod contestant;
mod grpc;
mod host;
mod idle;
mod pipe;
mod report;
mod start;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cofferdam::plugins::Host;

use crate::host::facts;
use crate::options::PluginsOptions;
use crate::program::installed;
use crate::results::{self, File};
use crate::rounds::Orders;
use contestant::{Contestant, LANGUAGES, Language};
use grpc::Grpc;
use host::Plugin;
use pipe::Pipe;
use report::{Calls, Report, Starts};

/// The number of calls that run at a time for the throughput.
const AT_ONCE: usize = 16;
/// The sizes of stream items in bytes, and the number of items of a turn.
const STREAMS: [(usize, usize); 2] = [(1 << 10, 2000), (64 << 10, 200)];
/// The number of idle plugins of Python.
const IDLE_PYTHON: usize = 50;
const IDLE: usize = 1000;
const IDLE_QUICK: usize = 50;

/// The amount of work.
struct Plan {
    rounds: usize,
    /// Calls one at a time in a turn, and calls at a time.
    calls: (usize, usize),
    starts: usize,
    idle: usize,
}

/// Measures, prints and writes the results.
pub fn run(options: &PluginsOptions, out: &Path) -> Result<()> {
    if let Some(socket) = &options.serve {
        return grpc::serve(socket);
    }
    let idle = options.idle.map(usize::try_from).transpose()?;
    let plan = match options.quick {
        true => Plan { rounds: 4, calls: (200, 800), starts: 5, idle: idle.unwrap_or(IDLE_QUICK) },
        false => Plan { rounds: 20, calls: (500, 1600), starts: 20, idle: idle.unwrap_or(IDLE) },
    };
    let facts = facts::collect();
    // As `cofferdam plugins run` has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async { tokio::spawn(measure(plan)).await? })?;
    let file = File::json(&format!("plugins-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

async fn measure(plan: Plan) -> Result<Report> {
    let directory = tempfile::Builder::new().prefix("cofferdam-plugins-").tempdir()?;
    let fixture = Fixture::create(directory.path())?;
    let mut report = Report { unavailable: fixture.unavailable.clone(), ..Report::default() };
    let host = host::open(directory.path())?;
    report.calls = calls(&plan, &fixture, &host).await.context("calls")?;
    report.starts = starts(&plan, &fixture, &host).await.context("starts")?;
    host::close(host).await;
    let shell = directory.path().join("shell");
    fs::create_dir(&shell)?;
    report.idle.push(idle::shell(&shell, plan.idle).await.context("idle plugins in a shell")?);
    if fixture.languages.iter().any(|(language, ..)| language.name == "python") {
        let python = directory.path().join("pythons");
        fs::create_dir(&python)?;
        report.idle.push(idle::python(&python, IDLE_PYTHON).await.context("idle plugins in Python")?);
    }
    Ok(report)
}

/// The files of the contestants.
struct Fixture {
    /// Each language with its package, and its program without an SDK.
    languages: Vec<(Language, PathBuf, PathBuf)>,
    socket: PathBuf,
    unavailable: Vec<String>,
}

impl Fixture {
    fn create(directory: &Path) -> Result<Self> {
        let (mut languages, mut unavailable) = (Vec::new(), Vec::new());
        for language in LANGUAGES {
            if !installed(language.interpreter) {
                unavailable.push(format!("{}: install {}", language.name, language.interpreter));
                continue;
            }
            let program = directory.join(language.pipe.0);
            fs::write(&program, language.pipe.1)?;
            languages.push((language, host::package_of(directory, &language)?, program));
        }
        Ok(Self { languages, socket: directory.join("grpc"), unavailable })
    }
}

async fn calls(plan: &Plan, fixture: &Fixture, host: &Host) -> Result<Vec<Calls>> {
    let mut contestants = Vec::new();
    for (language, package, program) in &fixture.languages {
        let pipe = Pipe::start(language.interpreter, program)?;
        contestants.push((format!("{} pipe", language.name), Contestant::Pipe(pipe)));
        let plugin = Plugin::load(host, package, language.name).await?;
        contestants.push((format!("{} plugin", language.name), Contestant::Plugin(plugin)));
    }
    contestants.push(("gRPC".to_owned(), Contestant::Grpc(Grpc::start(&fixture.socket).await?)));
    let mut found: Vec<Calls> = contestants.iter().map(|(name, _)| Calls::new(name)).collect();
    for (name, contestant) in &mut contestants {
        // The first turn compiles and fills caches, and does not count.
        turn(plan, contestant, &mut Calls::new(name)).await.with_context(|| name.clone())?;
    }
    let mut orders = Orders::new(contestants.len());
    for _ in 0..plan.rounds {
        for at in orders.next() {
            let (name, contestant) = &mut contestants[at];
            turn(plan, contestant, &mut found[at]).await.with_context(|| name.clone())?;
        }
    }
    for (_, contestant) in contestants {
        if let Contestant::Plugin(plugin) = contestant {
            plugin.unload().await?;
        }
    }
    Ok(found)
}

async fn turn(plan: &Plan, contestant: &mut Contestant, found: &mut Calls) -> Result<()> {
    let (single, many) = plan.calls;
    let begun = Instant::now();
    for _ in 0..single {
        let begun = Instant::now();
        contestant.call().await?;
        found.times.push(begun.elapsed());
    }
    found.rates[0].push(per_second(single, begun.elapsed()));
    found.rates[1].push(per_second(many, contestant.calls(many, AT_ONCE).await?));
    for (at, (size, items)) in STREAMS.into_iter().enumerate() {
        found.streams[at].push(per_second(items, contestant.stream(items, size).await?));
    }
    Ok(())
}

fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

async fn starts(plan: &Plan, fixture: &Fixture, host: &Host) -> Result<Vec<Starts>> {
    let mut found: Vec<Starts> = Vec::new();
    let names = ["pipe", "plugin, cold", "plugin, prepared"];
    for (language, ..) in &fixture.languages {
        found.extend(names.map(|name| Starts::new(&format!("{} {name}", language.name))));
    }
    found.push(Starts::new("gRPC"));
    let mut orders = Orders::new(found.len());
    for round in 0..plan.starts {
        for at in orders.next() {
            let time = match fixture.languages.get(at / names.len()) {
                Some((language, package, program)) => match at % names.len() {
                    0 => start::pipe(language, program).await,
                    1 => start::cold(host, package, language).await,
                    _ => start::warm(host, package, language).await,
                },
                None => start::grpc(&fixture.socket.with_extension(round.to_string())).await,
            };
            let starts = &mut found[at];
            starts.times.push(time.with_context(|| starts.name.clone())?);
        }
    }
    Ok(found)
}

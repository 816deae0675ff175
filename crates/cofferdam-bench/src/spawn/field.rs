//! The contestants on this host, ready to run, and the reasons why others are missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use cofferdam_contract::{Backend, Sandbox, Spec};
use cofferdam_engine::Pool;
use cofferdam_process::ProcessBackend;

use super::contestant::Contestant;
use super::peer::{Peer, Scene};
use super::pythons::{WarmPythons, python_with};
use super::resident::Resident;
use super::stage::Stage;
use super::workload::Workload;
use crate::process_backend;
use crate::program::{self, Keep};

/// Number of prepared sandboxes of a pool for sequential claims.
const FEW: usize = 4;
/// Number of prepared sandboxes of a pool for a burst: all runs of the largest batch.
const BURST: usize = 64;

/// The code of the contestants with pandas.
const PANDAS: &str = "import pandas; print(1)";

/// A missing contestant, and the reason.
pub type Unavailable = (Contestant, String);

/// Times of the phases of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// Until the sandbox exists and is measured.
    pub create: Duration,
    /// From the request to the collected result.
    pub exec: Duration,
    /// Until the sandbox is removed.
    pub close: Duration,
}

/// The contestants.
#[derive(Debug)]
pub struct Field {
    entrants: Vec<Contestant>,
    /// The missing contestants, and the reasons.
    pub unavailable: Vec<Unavailable>,
    /// Contestants with weaker isolation than usual, and the difference.
    pub weaker: Vec<(Contestant, &'static str)>,
    backend: Arc<ProcessBackend>,
    unprepared: Arc<ProcessBackend>,
    live: Arc<dyn Sandbox>,
    pools: [Pool; 2],
    command_line: PathBuf,
    resident: Option<Resident>,
    warm: BTreeMap<Contestant, WarmPythons>,
    /// A Python with pandas.
    pandas: Option<String>,
    options: BTreeMap<Peer, &'static [&'static str]>,
    stage: Stage,
    serial: AtomicU64,
}

impl Field {
    /// Starts everything that lives longer than one run, and tries every peer once. Cofferdam's contestants must work.
    /// A peer that does not is skipped. `command_line` is the program to measure, if it is not beside this one.
    pub async fn prepare(selected: &[Contestant], command_line: Option<&Path>) -> Result<Self> {
        let backend = process_backend::backend().await?;
        let own = std::env::current_exe().context("cannot find this program")?;
        // Cargo puts both programs into the same directory.
        let command_line = command_line.map_or_else(|| own.with_file_name("cofferdam"), Path::to_owned);
        let mut field = Self {
            entrants: Vec::new(),
            unavailable: Vec::new(),
            weaker: Vec::new(),
            live: backend.create(Spec::default()).await?,
            pools: [process_backend::pool(&backend, FEW).await?, process_backend::pool(&backend, BURST).await?],
            unprepared: process_backend::unprepared_backend().await?,
            backend,
            command_line,
            resident: None,
            warm: BTreeMap::new(),
            pandas: None,
            options: BTreeMap::new(),
            stage: Stage::new()?,
            serial: AtomicU64::new(0),
        };
        for contestant in selected.iter().copied() {
            match field.admit(contestant).await {
                Ok(()) => field.entrants.push(contestant),
                Err(reason) => field.unavailable.push((contestant, reason)),
            }
        }
        Ok(field)
    }

    async fn admit(&mut self, contestant: Contestant) -> Result<(), String> {
        match contestant {
            Contestant::Peer(peer) => self.admit_peer(peer).await,
            Contestant::CommandLine | Contestant::CommandLineServer if !self.command_line.exists() => {
                Err("the program is not built: start the benchmark with `cargo xtask bench`".to_owned())
            }
            Contestant::CommandLineServer => {
                self.resident = Some(Resident::start(&self.command_line).map_err(|error| format!("fails: {error:#}"))?);
                Ok(())
            }
            Contestant::Warm => match Workload::Python.missing() {
                None => self.admit_warm(contestant, &Workload::Python.argv()[..3], &[], "print(1)").await,
                Some(reason) => Err(reason),
            },
            Contestant::WarmPandas | Contestant::BarePandas => self.admit_pandas(contestant).await,
            _ => Ok(()),
        }
    }

    async fn admit_pandas(&mut self, contestant: Contestant) -> Result<(), String> {
        if self.pandas.is_none() {
            self.pandas = python_with("pandas").and_then(|path| path.to_str().map(str::to_owned));
        }
        let python = self.pandas.clone().ok_or("no python3 in the search path has pandas")?;
        match contestant {
            Contestant::WarmPandas => self.admit_warm(contestant, &[&python, "-u"], &["pandas"], PANDAS).await,
            _ => Ok(()),
        }
    }

    async fn admit_warm(
        &mut self,
        contestant: Contestant,
        command: &[&str],
        modules: &[&str],
        code: &'static str,
    ) -> Result<(), String> {
        let warm = WarmPythons::new(&self.backend, command, modules, code);
        warm.refill().await.map_err(|error| format!("fails: {error:#}"))?;
        self.warm.insert(contestant, warm);
        Ok(())
    }

    async fn admit_peer(&mut self, peer: Peer) -> Result<(), String> {
        if !program::installed(peer.slug()) {
            return Err("not installed".to_owned());
        }
        self.stage.set_up(peer).await?;
        let mut reasons = Vec::new();
        for (options, weaker) in peer.variants() {
            self.options.insert(peer, options);
            match self.peer(peer, Workload::True, Keep::OutputAndErrors).await {
                Ok(()) => {
                    self.weaker.extend((!weaker.is_empty()).then_some((Contestant::Peer(peer), *weaker)));
                    return Ok(());
                }
                Err(reason) => reasons.push(reason),
            }
        }
        // The message of the usual command line.
        Err(reasons.swap_remove(0))
    }

    /// Returns the contestants.
    pub fn entrants(&self) -> &[Contestant] {
        &self.entrants
    }

    /// Waits until the background work of a contestant's turn has ended, so that the others do not run beside it.
    pub async fn rest(&self, contestant: Contestant) -> Result<()> {
        match contestant {
            Contestant::Pool => process_backend::refilled(&self.pools[0], FEW).await,
            Contestant::PoolBurst => process_backend::refilled(&self.pools[1], BURST).await,
            _ => Ok(()),
        }
    }

    /// Runs a contestant once. Returns the total time, and the phases if it has them.
    pub async fn run(&self, contestant: Contestant, workload: Workload) -> Result<(Duration, Option<Phases>)> {
        if let Some(warm) = self.warm.get(&contestant) {
            warm.refill().await?;
        }
        let start = Instant::now();
        let phases = match contestant {
            Contestant::Bare => run(workload.argv(), workload).await?,
            Contestant::Exec => {
                process_backend::check(
                    &self.live.exec(process_backend::request(workload.argv())?).await?,
                    workload.output(),
                )?;
                None
            }
            Contestant::Pool => pooled(&self.pools[0], workload).await?,
            Contestant::PoolBurst => pooled(&self.pools[1], workload).await?,
            Contestant::Create => Some(self.sandbox(workload).await?),
            Contestant::Run => one_call(&self.backend, workload).await?,
            Contestant::Unprepared => one_call(&self.unprepared, workload).await?,
            Contestant::CommandLine => {
                let program = self.command_line.to_str().context("the path is not UTF-8")?;
                run(&[&[program, "run", "--"], workload.argv()].concat(), workload).await?
            }
            Contestant::CommandLineServer => {
                let program = self.command_line.to_str().context("the path is not UTF-8")?;
                let line = [&[program, "run", "--use-server", "require", "--"], workload.argv()].concat();
                let variable = self.resident.as_ref().map(Resident::variable);
                let ran = program::run_with(&line, variable, workload.output(), Keep::Output).await;
                ran.map_err(|reason| anyhow!("{}: {reason}", line.join(" ")))?;
                None
            }
            Contestant::Warm | Contestant::WarmPandas => {
                let warm = self.warm.get(&contestant).context("the contestant was not admitted")?;
                process_backend::check(&warm.run().await?, workload.output())?;
                None
            }
            Contestant::BarePandas => {
                let python = self.pandas.as_deref().context("the contestant was not admitted")?;
                run(&[python, "-c", PANDAS], workload).await?
            }
            Contestant::Peer(peer) => {
                self.peer(peer, workload, Keep::Output).await.map_err(|reason| anyhow!(reason))?;
                None
            }
        };
        Ok((start.elapsed(), phases))
    }

    async fn peer(&self, peer: Peer, workload: Workload, keep: Keep) -> Result<(), String> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let options = self.options.get(&peer).copied().unwrap_or_default();
        let line = peer.command_line(options, workload, &Scene { dir: self.stage.dir(), serial });
        program::run(&line, workload.output(), keep).await
    }

    async fn sandbox(&self, workload: Workload) -> Result<Phases> {
        let start = Instant::now();
        let sandbox = self.backend.create(Spec::default()).await?;
        let created = Instant::now();
        let completed = sandbox.exec(process_backend::request(workload.argv())?).await?;
        let ended = Instant::now();
        sandbox.close().await?;
        let closed = Instant::now();
        process_backend::check(&completed, workload.output())?;
        Ok(Phases { create: created - start, exec: ended - created, close: closed - ended })
    }
}

async fn one_call(backend: &ProcessBackend, workload: Workload) -> Result<Option<Phases>> {
    let (completed, _) = backend.run(Spec::default(), process_backend::request(workload.argv())?).await?;
    process_backend::check(&completed, workload.output())?;
    Ok(None)
}

async fn pooled(pool: &Pool, workload: Workload) -> Result<Option<Phases>> {
    let (completed, _) = pool.run(Spec::default(), process_backend::request(workload.argv())?).await?;
    process_backend::check(&completed, workload.output())?;
    Ok(None)
}

async fn run(line: &[&str], workload: Workload) -> Result<Option<Phases>> {
    program::run(line, workload.output(), Keep::Output)
        .await
        .map_err(|reason| anyhow!("{}: {reason}", line.join(" ")))?;
    Ok(None)
}

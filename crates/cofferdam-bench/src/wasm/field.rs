//! The contestants for one guest on this host, ready to run, and the reasons why others are missing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use cofferdam_contract::{Backend, Completed, ExecRequest, Spec};
use cofferdam_wasm::{Call, Loaded, Runner, WasmBackend};
use tempfile::TempDir;

use super::cache::Interpreters;
use super::contestant::Contestant;
use super::guest::{Guest, Source};
use crate::process_backend;
use crate::program::{self, Keep};

/// Number of runs of a batch that are not counted, because they find their memory in no cache.
const UNCOUNTED: usize = 5;

/// The state for the runs of one guest.
#[derive(Debug)]
pub struct Field {
    /// The guest.
    pub guest: Guest,
    /// The contestants.
    pub entrants: Vec<Contestant>,
    /// The missing contestants, and the reasons.
    pub unavailable: Vec<(Contestant, String)>,
    interpreters: Interpreters,
    backend: WasmBackend,
    module: Option<Bytes>,
    loaded: Option<Loaded>,
    request: ExecRequest,
    command_line: PathBuf,
    directory: TempDir,
}

impl Field {
    /// Prepares the contestants, and tries the programs once. Contestants in this process must work, unless the
    /// interpreter is missing.
    pub async fn prepare(guest: Guest, interpreters: &Interpreters, command_line: Option<&Path>) -> Result<Self> {
        let own = std::env::current_exe().context("cannot find this program")?;
        let directory =
            tempfile::Builder::new().prefix("bench-wasm-").tempdir().context("cannot create a directory")?;
        let module = guest.module()?;
        if let Some(module) = &module {
            std::fs::write(directory.path().join("main.wasm"), module)?;
        }
        let mut field = Self {
            guest,
            entrants: Vec::new(),
            unavailable: Vec::new(),
            backend: interpreters.backend(),
            interpreters: interpreters.clone(),
            module,
            loaded: None,
            request: guest.request()?,
            command_line: command_line.map_or_else(|| own.with_file_name("cofferdam"), Path::to_owned),
            directory,
        };
        let missing = match guest.source() {
            Source::Module(_) => None,
            Source::Script(language, _) => interpreters.prepare(language).await.err(),
        };
        if missing.is_none() {
            field.loaded = Some(field.load(&field.backend).await?);
        }
        for contestant in Contestant::ALL.into_iter().filter(|who| who.runs(guest)) {
            match field.admit(contestant, missing.as_deref()).await {
                Ok(()) => field.entrants.push(contestant),
                Err(reason) => field.unavailable.push((contestant, reason)),
            }
        }
        Ok(field)
    }

    async fn admit(&self, contestant: Contestant, missing: Option<&str>) -> Result<(), String> {
        let installed = |name: &str| program::installed(name).then_some(()).ok_or("not installed");
        match contestant {
            who if who.in_process() => return missing.map_or(Ok(()), |reason| Err(reason.to_owned())),
            Contestant::CommandLine if !self.command_line.exists() => {
                return Err("the program is not built: start the benchmark with `cargo xtask bench`".to_owned());
            }
            Contestant::Wasmtime => installed("wasmtime")?,
            // Of a path too.
            Contestant::Native => installed(self.guest.native()[0])?,
            _ => {}
        }
        program::run(&self.line(contestant), self.guest.output(), Keep::OutputAndErrors).await
    }

    /// Returns the command line of the contestants that are programs.
    fn line(&self, contestant: Contestant) -> Vec<OsString> {
        let module = || self.directory.path().join("main.wasm").into_os_string();
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        match contestant {
            Contestant::CommandLine => {
                let mut line = vec![self.command_line.clone().into_os_string()];
                line.extend(words(&["run", "--backend", "wasm"]));
                match self.guest.source() {
                    Source::Module(_) => line.push(module()),
                    Source::Script(_, code) => line.extend(words(&["--lang", self.guest.slug(), "--code", code])),
                }
                line
            }
            Contestant::Wasmtime => [words(&["wasmtime", "run"]), vec![module()]].concat(),
            _ => words(self.guest.native()),
        }
    }

    /// Returns the guest for restored instances, or `None` without the interpreter.
    pub fn loaded(&self) -> Option<&Loaded> {
        self.loaded.as_ref()
    }

    async fn load(&self, backend: &WasmBackend) -> Result<Loaded> {
        let spec = Spec::default();
        Ok(match (self.guest.source(), &self.module) {
            (Source::Script(language, _), _) => backend.load_language(language, spec).await?,
            (Source::Module(_), module) => backend.load(module.clone().context("a module has bytes")?, spec).await?,
        })
    }

    /// Runs one turn: as many runs as its batch has.
    pub async fn turn(&self, contestant: Contestant) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(contestant.batch());
        match contestant {
            Contestant::Restored => {
                let loaded = self.loaded.as_ref().context("the contestant was not admitted")?;
                times = loaded.on_runner(|runner| self.batch(runner))??;
                times.drain(..UNCOUNTED);
            }
            Contestant::New => {
                for _ in 0..contestant.batch() {
                    times.push(self.new_instance().await?);
                }
            }
            Contestant::Contract => {
                for _ in 0..contestant.batch() {
                    let start = Instant::now();
                    let (completed, _) = self.backend.run(Spec::default(), self.request.clone()).await?;
                    times.push(start.elapsed());
                    process_backend::check(&completed, self.guest.output())?;
                }
            }
            Contestant::Cold => times.push(self.cold().await?),
            Contestant::CommandLine | Contestant::Wasmtime | Contestant::Native => {
                let line = self.line(contestant);
                let start = Instant::now();
                let ran = program::run(&line, self.guest.output(), Keep::Output).await;
                times.push(start.elapsed());
                ran.map_err(|reason| anyhow!("{reason}"))?;
            }
        }
        Ok(times)
    }

    fn batch(&self, runner: &Runner<'_>) -> Result<Vec<Duration>> {
        let call = self.guest.call();
        (0..UNCOUNTED + Contestant::Restored.batch()).map(|_| Ok(self.timed(runner, &call)?.0)).collect()
    }

    fn timed(&self, runner: &Runner<'_>, call: &Call) -> Result<(Duration, Completed)> {
        let start = Instant::now();
        let completed = runner.run(call)?;
        let time = start.elapsed();
        process_backend::check(&completed, self.guest.output())?;
        Ok((time, completed))
    }

    /// Measures the first run of new code, and its end. The code is compiled already.
    async fn new_instance(&self) -> Result<Duration> {
        let loaded = self.load(&self.backend).await?;
        let (ran, _) = loaded.on_runner(|runner| self.timed(runner, &self.guest.call()))??;
        let start = Instant::now();
        drop(loaded);
        Ok(ran + start.elapsed())
    }

    /// Measures from nothing to the first result, as in a new process, without the teardown.
    async fn cold(&self) -> Result<Duration> {
        let start = Instant::now();
        let backend = self.interpreters.backend();
        let loaded = self.load(&backend).await?;
        let completed = loaded.on_runner(|runner| runner.run(&self.guest.call()))??;
        let time = start.elapsed();
        process_backend::check(&completed, self.guest.output())?;
        Ok(time)
    }
}

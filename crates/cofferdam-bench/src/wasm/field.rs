//! Those who can run one guest on this machine, ready to run, and why the others do not.

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
use crate::ours;
use crate::program::{self, Keep};

/// Runs of a batch that are not counted: they find their memory in nobody's cache.
const UNCOUNTED: usize = 5;

/// Everything that runs of one guest need.
#[derive(Debug)]
pub struct Field {
    /// What they run.
    pub guest: Guest,
    /// Who takes part.
    pub entrants: Vec<Contestant>,
    /// Who does not, and why.
    pub absent: Vec<(Contestant, String)>,
    interpreters: Interpreters,
    backend: WasmBackend,
    module: Option<Bytes>,
    loaded: Option<Loaded>,
    request: ExecRequest,
    command_line: PathBuf,
    directory: TempDir,
}

impl Field {
    /// Makes ready what they need, and tries those that are programs once. What runs in process must work, unless the
    /// interpreter is missing.
    pub async fn prepare(guest: Guest, interpreters: &Interpreters, command_line: Option<&Path>) -> Result<Self> {
        let own = std::env::current_exe().context("cannot find this program")?;
        let directory = tempfile::Builder::new().prefix("bench-wasm-").tempdir().context("cannot make a directory")?;
        let module = guest.module()?;
        if let Some(module) = &module {
            std::fs::write(directory.path().join("main.wasm"), module)?;
        }
        let mut field = Self {
            guest,
            entrants: Vec::new(),
            absent: Vec::new(),
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
                Err(reason) => field.absent.push((contestant, reason)),
            }
        }
        Ok(field)
    }

    async fn admit(&self, contestant: Contestant, missing: Option<&str>) -> Result<(), String> {
        let installed = |name: &str| program::installed(name).then_some(()).ok_or("not installed");
        match contestant {
            who if who.in_process() => return missing.map_or(Ok(()), |reason| Err(reason.to_owned())),
            Contestant::CommandLine if !self.command_line.exists() => {
                return Err("the program is not built: start the benchmark by `cargo xtask bench`".to_owned());
            }
            Contestant::Wasmtime => installed("wasmtime")?,
            // Of a path too.
            Contestant::Native => installed(self.guest.native()[0])?,
            _ => {}
        }
        program::run(&self.line(contestant), self.guest.output(), Keep::OutputAndErrors).await
    }

    /// The command line of those that are programs.
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

    /// What runs in instances that are restored; `None` without the interpreter.
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

    /// One turn: as many runs as its batch has.
    pub async fn turn(&self, contestant: Contestant) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(contestant.batch());
        match contestant {
            Contestant::Restored => {
                let loaded = self.loaded.as_ref().context("it was not admitted")?;
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
                    ours::check(&completed, self.guest.output())?;
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
        ours::check(&completed, self.guest.output())?;
        Ok((time, completed))
    }

    /// The first run of what was loaded just now, and its end. The code is there already.
    async fn new_instance(&self) -> Result<Duration> {
        let loaded = self.load(&self.backend).await?;
        let (ran, _) = loaded.on_runner(|runner| self.timed(runner, &self.guest.call()))??;
        let start = Instant::now();
        drop(loaded);
        Ok(ran + start.elapsed())
    }

    /// From nothing to the first result, as in a process that has just begun. Taking it all down does not count.
    async fn cold(&self) -> Result<Duration> {
        let start = Instant::now();
        let backend = self.interpreters.backend();
        let loaded = self.load(&backend).await?;
        let completed = loaded.on_runner(|runner| runner.run(&self.guest.call()))??;
        let time = start.elapsed();
        ours::check(&completed, self.guest.output())?;
        Ok(time)
    }
}

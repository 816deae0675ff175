//! Fuzz target for WebAssembly modules: each is compiled and run under small limits.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use cofferdam_contract::{Backend, Command, ErrorKind, ExecRequest, Exit, LimitKind, Sandbox, Script, Spec};
use cofferdam_wasm::{INTERPRETER, WasmBackend};

use crate::cases;
use crate::drive::Outcome;
use crate::host::{FuzzHost, LATE, OUTPUT, WALL_TIME, limits, within_limits};

/// The execution mode of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Without instrumentation.
    Plain,
    /// With fuel metering.
    Fuel,
    /// Deterministic.
    Deterministic,
}

/// A runner of modules that checks the properties of every case.
#[derive(Debug)]
pub struct Modules(FuzzHost);

impl Modules {
    /// Creates a target with a runtime of its own.
    pub fn new() -> Result<Self> {
        FuzzHost::new().map(Self)
    }

    /// Generates the case of a seed and runs it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let (bytes, mode) = cases::module(seed);
        self.check(&bytes, mode).with_context(|| format!("a module of {} bytes, {mode:?}", bytes.len()))
    }

    /// Runs one module. An error is a finding.
    pub fn check(&mut self, bytes: &[u8], mode: Mode) -> Result<Outcome> {
        self.0.check(async |backend| check(backend, bytes, mode).await)
    }
}

fn spec(mode: Mode) -> Result<Spec> {
    let spec = Spec::builder().limits(limits());
    let spec = match mode {
        Mode::Plain => spec,
        Mode::Fuel => spec.attribute("wasm.fuel", 100_000),
        Mode::Deterministic => spec.attribute("wasm.deterministic", 1),
    };
    Ok(spec.build()?)
}

fn request(bytes: &[u8]) -> Result<ExecRequest> {
    let script = Script {
        interpreter: vec![INTERPRETER.to_owned()],
        name: "case.wasm".to_owned(),
        contents: bytes.to_vec().into(),
        args: vec!["one".to_owned()],
    };
    let request = ExecRequest::builder(Command::Script(script)).timeout(WALL_TIME).max_output(OUTPUT);
    Ok(request.output_buffer(OUTPUT).build()?)
}

async fn check(backend: &WasmBackend, bytes: &[u8], mode: Mode) -> Result<Outcome> {
    let sandbox = backend.create(spec(mode)?).await.context("cannot create a sandbox")?;
    let outcome = run(&sandbox, bytes).await;
    let usage = sandbox.usage().await.context("cannot read the usage")?;
    // Files are accounted separately under a disk limit.
    let memory = usage.memory_bytes.unwrap_or(u64::MAX);
    ensure!(memory == 0, "{memory} bytes of memory are in use although no guest runs");
    within_limits(&sandbox).await?;
    sandbox.close().await.context("cannot close the sandbox")?;
    outcome
}

async fn run(sandbox: &Arc<dyn Sandbox>, bytes: &[u8]) -> Result<Outcome> {
    let start = Instant::now();
    let started = sandbox.start(request(bytes)?).await;
    ensure!(start.elapsed() <= WALL_TIME + LATE, "it took {:?} to compile or to refuse", start.elapsed());
    let handle = match started {
        Ok(handle) => handle,
        // Compilation may take no longer than execution. On a busy machine it can.
        Err(error) if error.kind() == ErrorKind::ResourceExhausted && start.elapsed() >= WALL_TIME => {
            return Ok(Outcome::Limited);
        }
        Err(error) if error.kind() == ErrorKind::NotExecutable => return Ok(Outcome::Refused),
        Err(error) => bail!("a module was refused with an error of kind {:?}: {error}", error.kind()),
    };
    let start = Instant::now();
    let exit = tokio::time::timeout(WALL_TIME + LATE, handle.exit()).await;
    let Ok(exit) = exit else {
        bail!("still runs after {:?}, with a wall time limit of {WALL_TIME:?}", start.elapsed())
    };
    match exit {
        Ok(exit) => outcome(&exit),
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => Ok(Outcome::Trapped),
        Err(error) => bail!("an exec ended with an error of kind {:?}: {error}", error.kind()),
    }
}

/// Checks that an exit has one cause only: a code, a signal with or without a limit, or a time-out.
pub(crate) fn outcome(exit: &Exit) -> Result<Outcome> {
    ensure!(!exit.cancelled, "cancelled without a request: {exit:?}");
    ensure!(exit.signal.is_some() || (0..256).contains(&exit.code), "neither a code nor a signal: {exit:?}");
    let known = |limit| matches!(limit, LimitKind::Cpu | LimitKind::Memory);
    ensure!(exit.killed_by.is_none_or(known), "killed by a limit that is not reported: {exit:?}");
    ensure!(
        exit.signal.is_some() || (!exit.timed_out && exit.killed_by.is_none()),
        "limited, but exited with a code: {exit:?}"
    );
    Ok(match exit {
        Exit { timed_out: true, .. } | Exit { killed_by: Some(_), .. } => Outcome::Limited,
        Exit { signal: Some(_), .. } => Outcome::Trapped,
        _ => Outcome::Ended,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_exit_that_contradicts_itself_is_a_finding() {
        let plain = Exit {
            code: 0,
            signal: None,
            timed_out: false,
            cancelled: false,
            truncated: false,
            killed_by: None,
            limits_hit: Vec::new(),
            duration: Duration::ZERO,
            usage: cofferdam_contract::Usage::default(),
        };
        assert_eq!(outcome(&plain).unwrap(), Outcome::Ended);
        assert_eq!(outcome(&Exit { signal: Some(9), timed_out: true, ..plain.clone() }).unwrap(), Outcome::Limited);
        for bad in [
            Exit { code: -1, ..plain.clone() },
            Exit { timed_out: true, ..plain.clone() },
            Exit { cancelled: true, ..plain.clone() },
            Exit { killed_by: Some(LimitKind::Disk), signal: Some(9), ..plain.clone() },
        ] {
            assert!(outcome(&bad).is_err(), "{bad:?}");
        }
    }
}

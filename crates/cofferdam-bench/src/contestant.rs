//! What is compared. Each runs `/bin/true` once from nothing to nothing, and checks that it ended with 0.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cofferdam_contract::{Backend, ExecRequest, Spec};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use tokio::process::Command;

/// The program that everybody runs.
const PROGRAM: &str = "/bin/true";
/// Runs of each contestant that are not counted.
const WARM_UP: usize = 20;

/// One way to run the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    /// `posix_spawn` with no wall at all.
    Bare,
    /// A sandbox of Cofferdam's process backend, through the library: create, exec, close, one after the other.
    Cofferdam,
    /// The same by the one-shot call, which may order the command together with the sandbox.
    CofferdamRun,
    /// The same call to a backend that makes nothing ready in idle time.
    CofferdamUnprepared,
    /// `bwrap --unshare-all` with the host's files, read-only.
    Bubblewrap,
}

impl Contestant {
    /// The name used in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare posix_spawn",
            Self::Cofferdam => "cofferdam create+exec+close",
            Self::CofferdamRun => "cofferdam run (one call)",
            Self::CofferdamUnprepared => "cofferdam run, unprepared",
            Self::Bubblewrap => "bwrap --unshare-all",
        }
    }
}

/// Time of the phases of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// Until the sandbox is there and measured.
    pub create: Duration,
    /// From the request to the collected result.
    pub exec: Duration,
    /// Until nothing is left of it.
    pub close: Duration,
}

/// Those that take part on this machine, ready to run.
#[derive(Debug, Clone)]
pub struct Contestants {
    backend: Arc<ProcessBackend>,
    unprepared: Arc<ProcessBackend>,
    bubblewrap: bool,
}

impl Contestants {
    /// Starts what lives longer than one run, and warms everybody up.
    pub async fn prepare() -> Result<Self> {
        let backend = Arc::new(ProcessBackend::new(ProcessConfig::default())?);
        let config = ProcessConfig { prepare_ahead: false, ..ProcessConfig::default() };
        let unprepared = Arc::new(ProcessBackend::new(config)?);
        // A default spec names no exception, so that a create which falls short of a protection fails here.
        let sandbox = backend.create(Spec::default()).await.context("cannot make a sandbox: see `cofferdam doctor`")?;
        sandbox.close().await?;
        let bubblewrap = bubblewrap_command().status().await.is_ok_and(|status| status.success());
        let contestants = Self { backend, unprepared, bubblewrap };
        for contestant in contestants.all() {
            for _ in 0..WARM_UP {
                contestants.run(contestant).await?;
            }
        }
        Ok(contestants)
    }

    /// Who takes part.
    pub fn all(&self) -> Vec<Contestant> {
        let mut all =
            vec![Contestant::Bare, Contestant::Cofferdam, Contestant::CofferdamRun, Contestant::CofferdamUnprepared];
        all.extend(self.bubblewrap.then_some(Contestant::Bubblewrap));
        all
    }

    /// Runs one once. The time is the whole; phases come from those that have them.
    pub async fn run(&self, contestant: Contestant) -> Result<(Duration, Option<Phases>)> {
        let start = Instant::now();
        let phases = match contestant {
            Contestant::Bare => command(Command::new(PROGRAM)).await?,
            Contestant::Bubblewrap => command(bubblewrap_command()).await?,
            Contestant::Cofferdam => Some(self.sandbox().await?),
            Contestant::CofferdamRun => one_call(&self.backend).await?,
            Contestant::CofferdamUnprepared => one_call(&self.unprepared).await?,
        };
        Ok((start.elapsed(), phases))
    }

    async fn sandbox(&self) -> Result<Phases> {
        let start = Instant::now();
        let sandbox = self.backend.create(Spec::default()).await?;
        let created = Instant::now();
        let completed = sandbox.exec(ExecRequest::argv([PROGRAM]).build()?).await?;
        let ended = Instant::now();
        sandbox.close().await?;
        let closed = Instant::now();
        ensure!(completed.exit.success(), "{PROGRAM} failed in a sandbox: {:?}", completed.exit);
        Ok(Phases { create: created - start, exec: ended - created, close: closed - ended })
    }
}

async fn one_call(backend: &ProcessBackend) -> Result<Option<Phases>> {
    let (completed, _) = backend.run(Spec::default(), ExecRequest::argv([PROGRAM]).build()?).await?;
    ensure!(completed.exit.success(), "{PROGRAM} failed in a sandbox: {:?}", completed.exit);
    Ok(None)
}

async fn command(mut command: Command) -> Result<Option<Phases>> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().await?;
    if !status.success() {
        bail!("{PROGRAM} failed: {status}");
    }
    Ok(None)
}

fn bubblewrap_command() -> Command {
    let mut bwrap = Command::new("bwrap");
    bwrap.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", PROGRAM]);
    bwrap.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    bwrap
}

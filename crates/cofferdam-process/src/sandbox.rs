//! One live sandbox, as its owner holds it.
//!
//! ```text
//! making --Ready, posture holds--> open --close | drop | init gone--> closed --launcher done--> nothing left
//! ```

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_contract::{
    Command, Completed, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, Posture, Result, Sandbox,
    SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec, after_close, collect,
};
use cofferdam_linux::cgroup::Stats;
use cofferdam_linux::named::Directory;

use crate::client::Launcher;
use crate::core::{Core, Enrolled};
use crate::protocol::{self, Create, Evidence, Expected, Order};
use crate::raw::{Raw, kind};
use crate::{error, exec, files};

/// The number of a sandbox's first exec.
const FIRST_EXEC: u64 = 1;
/// Time an init has to take an order.
const ORDER_LIMIT: Duration = Duration::from_secs(10);

/// A process sandbox. Dropping it ends everything in it.
pub struct ProcessSandbox {
    id: SandboxId,
    spec: Spec,
    posture: Posture,
    core: Arc<Core>,
}

/// What a sandbox is made from, besides what its launcher needs.
pub struct Made {
    /// What was asked for.
    pub spec: Spec,
    /// PATH inside.
    pub path: String,
    /// The directory of the host that is its workspace.
    pub directory: Option<Directory>,
}

impl ProcessSandbox {
    /// One that was accepted.
    pub fn new(id: SandboxId, spec: Spec, posture: Posture, core: Arc<Core>) -> Self {
        Self { id, spec, posture, core }
    }

    /// Has a sandbox made and measures it. Whatever falls short of the spec ends it again.
    pub async fn make(launcher: Arc<Launcher>, mut create: Create, made: Made) -> Result<Self> {
        create.probe = launcher.known_walls(kind(&create)).is_none();
        let control = launcher.create(&create)?;
        Ok(Self::receive(launcher, create, made, control).await?.0)
    }

    /// Makes a sandbox, runs one command in it, closes it.
    pub async fn run(
        launcher: Arc<Launcher>,
        create: Create,
        made: Made,
        request: ExecRequest,
    ) -> Result<(Completed, Posture)> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let (sandbox, handle) = Self::start_one(launcher, create, made, request).await?;
        let result = collect(handle).await;
        let closed = sandbox.close().await;
        after_close(result.map(|completed| (completed, sandbox.posture.clone())), closed)
    }

    /// Makes a sandbox and starts its only command. The command is ordered together with the sandbox, and starts at once
    /// if that measures the same as an accepted one with the same request did, or, where none is known, if nothing at all
    /// is missing. Else it starts when the measurements were accepted, or never.
    pub async fn start_one(
        launcher: Arc<Launcher>,
        mut create: Create,
        made: Made,
        request: ExecRequest,
    ) -> Result<(Self, ExecHandle)> {
        if matches!(request.command(), Command::Script(_)) || request.terminal().is_some() {
            let sandbox = Self::make(launcher, create, made).await?;
            let started = sandbox.start(request).await;
            return sandbox.with(started).await;
        }
        create.probe = launcher.known_walls(kind(&create)).is_none();
        create.expected = Some(match launcher.expected(&create) {
            Some(evidence) => Expected::Same(Box::new(Evidence::clone(&evidence))),
            None => Expected::Whole,
        });
        let mut prepared = exec::prepare(&made.path, None, FIRST_EXEC, &request)?;
        prepared.start.if_expected = true;
        prepared.start.last = true;
        let control = launcher.create(&create)?;
        let fds: Vec<_> = prepared.theirs.iter().map(AsFd::as_fd).collect();
        let no_order = |error| error::os("start", "cannot order the command", error);
        let mut failed = protocol::send(control.as_fd(), &Order::Start(prepared.start), &fds, ORDER_LIMIT).err();
        // A sandbox that is refused sooner than it can be asked for hears no order: the launcher says why.
        let refused = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset];
        if let Some(error) = failed.take_if(|error| !refused.contains(&error.kind())) {
            return Err(no_order(error));
        }
        drop(fds);
        drop(prepared.theirs);
        // The command's time begins when it does, however long its sandbox took.
        let (sandbox, enrolled, begun) = Self::receive(launcher, create, made, control).await?;
        if let Some(error) = failed {
            return Err(no_order(error).with_failed_close(sandbox.close().await));
        }
        let core = &sandbox.core;
        let enrolled = enrolled.ok_or_else(|| Error::closed("start"))?;
        debug_assert_eq!(enrolled.exec, FIRST_EXEC);
        let base = exec::Base::begin(core, FIRST_EXEC);
        let guard = exec::Unstarted { core, exec: Some(FIRST_EXEC) };
        let running = exec::Running { ours: prepared.ours, program: prepared.program, directory: prepared.directory };
        let started = match exec::attach(core, &request, begun, (enrolled, base), running, guard).await {
            // Not as expected, and yet accepted: then it is started the slow way.
            Err(error) if error.kind() == ErrorKind::Internal => sandbox.start(request).await,
            other => other,
        };
        sandbox.with(started).await
    }

    /// Itself and what was started in it; or nothing is left.
    async fn with(self, started: Result<ExecHandle>) -> Result<(Self, ExecHandle)> {
        match started {
            Ok(handle) => Ok((self, handle)),
            Err(error) => Err(error.with_failed_close(self.close().await)),
        }
    }

    /// Waits for a sandbox that was asked for, and accepts or ends it.
    ///
    /// Gives the first exec, too, if it was ordered along with it, and when the sandbox was ready.
    async fn receive(
        launcher: Arc<Launcher>,
        create: Create,
        made: Made,
        control: OwnedFd,
    ) -> Result<(Self, Option<Enrolled>, Instant)> {
        let (raw, enrolled) = Raw::receive(launcher, create, made.directory, made.path, control).await?;
        let ready = raw.ready();
        Ok((raw.accept(made.spec).await?, enrolled, ready))
    }
}

impl Drop for ProcessSandbox {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl fmt::Debug for ProcessSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessSandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ProcessSandbox {
    fn open(&self, operation: &'static str) -> Result<()> {
        if self.core.is_closed() { Err(Error::closed(operation)) } else { Ok(()) }
    }

    fn room(&self, operation: &'static str) -> Result<files::Room> {
        self.open(operation)?;
        let dir = self.core.workspace.try_clone();
        let dir = dir.map_err(|error| error::os(operation, "cannot open the workspace", error))?;
        Ok(files::Room { dir, owner: self.core.owner })
    }
}

#[async_trait]
impl Sandbox for ProcessSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        self.open("start")?;
        exec::start(&self.core, request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.read_file_from(path, 0).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        files::read(self.room("read_file")?, path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        let room = self.room("write_file")?;
        self.spec.workspace().check_change("write_file")?;
        files::write(room, path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        files::list(self.room("list_dir")?, path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        let room = self.room("remove")?;
        self.spec.workspace().check_change("remove")?;
        files::remove(room, path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        Err(Error::unsupported("snapshot", "the process backend cannot freeze running programs")
            .with_remedy("use level vm for snapshots"))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("fork", "the process backend cannot copy running programs")
            .with_remedy("use level vm for forks"))
    }

    async fn pause(&self) -> Result<()> {
        Err(Error::unsupported("pause", "the process backend cannot stop programs and let them go on"))
    }

    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported("resume", "the process backend cannot stop programs and let them go on"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.open("usage")?;
        let stats = self.core.stats.as_ref();
        let disk = rustix::fs::fstatvfs(&self.core.code).ok();
        Ok(SandboxUsage {
            cpu_seconds: stats.and_then(Stats::cpu_micros).map(|micros| micros as f64 / 1e6),
            memory_bytes: stats.and_then(Stats::memory).map(|bytes| bytes.saturating_sub(self.core.group_base.2)),
            peak_memory_bytes: self.core.peak_memory(),
            // The init is not the guest's.
            processes: stats.and_then(Stats::tasks).map(|tasks| (tasks as u32).saturating_sub(1)),
            disk_bytes: disk.map(|stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize),
        })
    }

    async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}

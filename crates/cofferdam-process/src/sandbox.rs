//! A running sandbox, from the side of its owner.
//!
//! ```text
//! created --Ready, posture holds--> open --close | drop | init gone--> closed --launcher done--> nothing left
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
use crate::pending::{PendingSandbox, kind};
use crate::protocol::{self, Create, Evidence, Expected, Request};
use crate::{error, exec, files};

/// The number of a sandbox's first exec.
const FIRST_EXEC: u64 = 1;
/// Time for an init to receive a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A process sandbox. Dropping it ends everything in it.
pub struct ProcessSandbox {
    id: SandboxId,
    spec: Spec,
    posture: Posture,
    core: Arc<Core>,
}

/// The owner's inputs to a new sandbox, besides the request to its launcher.
pub struct SandboxInputs {
    /// The spec.
    pub spec: Spec,
    /// The value of PATH inside.
    pub path: String,
    /// The host directory that is its workspace.
    pub directory: Option<Directory>,
}

impl ProcessSandbox {
    /// Wraps an accepted sandbox.
    pub fn new(id: SandboxId, spec: Spec, posture: Posture, core: Arc<Core>) -> Self {
        Self { id, spec, posture, core }
    }

    /// Creates and measures a sandbox. Removes it if it falls short of the spec.
    pub async fn create(launcher: Arc<Launcher>, mut create: Create, inputs: SandboxInputs) -> Result<Self> {
        create.probe = launcher.known_probes(kind(&create)).is_none();
        let control = launcher.create(&create)?;
        Ok(Self::receive(launcher, create, inputs, control).await?.0)
    }

    /// Creates a sandbox, runs one command in it and closes it.
    pub async fn run(
        launcher: Arc<Launcher>,
        create: Create,
        inputs: SandboxInputs,
        request: ExecRequest,
    ) -> Result<(Completed, Posture)> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let (sandbox, handle) = Self::start_one(launcher, create, inputs, request).await?;
        let result = collect(handle).await;
        let closed = sandbox.close().await;
        after_close(result.map(|completed| (completed, sandbox.posture.clone())), closed)
    }

    /// Creates a sandbox and starts its only command. The command is requested together with the sandbox. It starts at
    /// once if the measurements equal those of an accepted sandbox with the same request, or, without such a sandbox,
    /// if they are complete. Otherwise it starts once the measurements are accepted, or never.
    pub async fn start_one(
        launcher: Arc<Launcher>,
        mut create: Create,
        inputs: SandboxInputs,
        request: ExecRequest,
    ) -> Result<(Self, ExecHandle)> {
        if matches!(request.command(), Command::Script(_)) || request.terminal().is_some() {
            let sandbox = Self::create(launcher, create, inputs).await?;
            let started = sandbox.start(request).await;
            return sandbox.with(started).await;
        }
        create.probe = launcher.known_probes(kind(&create)).is_none();
        create.expected = Some(match launcher.expected(&create) {
            Some(evidence) => Expected::Same(Box::new(Evidence::clone(&evidence))),
            None => Expected::Complete,
        });
        let mut prepared = exec::prepare(&inputs.path, None, FIRST_EXEC, &request)?;
        prepared.start.if_expected = true;
        prepared.start.last = true;
        let control = launcher.create(&create)?;
        let fds: Vec<_> = prepared.theirs.iter().map(AsFd::as_fd).collect();
        let request_failed = |error| error::os("start", "cannot request the command", error);
        let mut failed = protocol::send(control.as_fd(), &Request::Start(prepared.start), &fds, REQUEST_TIMEOUT).err();
        // If the sandbox is refused before the request is sent, the launcher reports the reason.
        let refused = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset];
        if let Some(error) = failed.take_if(|error| !refused.contains(&error.kind())) {
            return Err(request_failed(error));
        }
        drop(fds);
        drop(prepared.theirs);
        // The command's time begins with its start, independent of the time to create its sandbox.
        let (sandbox, enrolled, begun) = Self::receive(launcher, create, inputs, control).await?;
        if let Some(error) = failed {
            return Err(request_failed(error).with_failed_close(sandbox.close().await));
        }
        let core = &sandbox.core;
        let enrolled = enrolled.ok_or_else(|| Error::closed("start"))?;
        debug_assert_eq!(enrolled.exec, FIRST_EXEC);
        let base = exec::Base::begin(core, FIRST_EXEC);
        let guard = exec::Unstarted { core, exec: Some(FIRST_EXEC) };
        let running = exec::Running { ours: prepared.ours, program: prepared.program, directory: prepared.directory };
        let started = match exec::attach(core, &request, begun, (enrolled, base), running, guard).await {
            // The measurements are not as expected, but were accepted: request the start again.
            Err(error) if error.kind() == ErrorKind::Internal => sandbox.start(request).await,
            other => other,
        };
        sandbox.with(started).await
    }

    /// Returns the sandbox and its exec, or closes the sandbox if the start failed.
    async fn with(self, started: Result<ExecHandle>) -> Result<(Self, ExecHandle)> {
        match started {
            Ok(handle) => Ok((self, handle)),
            Err(error) => Err(error.with_failed_close(self.close().await)),
        }
    }

    /// Waits for a requested sandbox, and accepts or removes it.
    ///
    ///
    /// Returns also the first exec, if it was requested with the sandbox, and the time when the sandbox was ready.
    async fn receive(
        launcher: Arc<Launcher>,
        create: Create,
        inputs: SandboxInputs,
        control: OwnedFd,
    ) -> Result<(Self, Option<Enrolled>, Instant)> {
        let (pending, enrolled) =
            PendingSandbox::receive(launcher, create, inputs.directory, inputs.path, control).await?;
        let ready = pending.ready();
        Ok((pending.accept(inputs.spec).await?, enrolled, ready))
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

    fn workspace_root(&self, operation: &'static str) -> Result<files::WorkspaceRoot> {
        self.open(operation)?;
        let dir = self.core.workspace.try_clone();
        let dir = dir.map_err(|error| error::os(operation, "cannot open the workspace", error))?;
        Ok(files::WorkspaceRoot { dir, owner: self.core.owner })
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
        files::read(self.workspace_root("read_file")?, path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        let root = self.workspace_root("write_file")?;
        self.spec.workspace().check_change("write_file")?;
        files::write(root, path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        files::list(self.workspace_root("list_dir")?, path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        let root = self.workspace_root("remove")?;
        self.spec.workspace().check_change("remove")?;
        files::remove(root, path).await
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
        Err(Error::unsupported("pause", "the process backend cannot pause and resume programs"))
    }

    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported("resume", "the process backend cannot pause and resume programs"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.open("usage")?;
        let stats = self.core.stats.as_ref();
        let disk = rustix::fs::fstatvfs(&self.core.code).ok();
        Ok(SandboxUsage {
            cpu_seconds: stats.and_then(Stats::cpu_micros).map(|micros| micros as f64 / 1e6),
            memory_bytes: stats.and_then(Stats::memory).map(|bytes| bytes.saturating_sub(self.core.group_base.2)),
            peak_memory_bytes: self.core.peak_memory(),
            // The init does not belong to the guest.
            processes: stats.and_then(Stats::tasks).map(|tasks| (tasks as u32).saturating_sub(1)),
            disk_bytes: disk.map(|stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize),
        })
    }

    async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}

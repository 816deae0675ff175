//! A backend that uses a server, for one run.
//!
//! One connection is one sandbox with one exec. The choice of prepared interpreter depends on the exec request, so
//! nothing is created before it. Until then, such a sandbox has an empty posture.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{
    self as contract, Backend, Capabilities, Capability, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest,
    ExitWatch, FileReader, Level, NewEntry, Posture, PreparedSandbox, Result, Sandbox, SandboxId, SandboxPath,
    SandboxUsage, Snapshot, Spec,
};
use cofferdam_linux::named::Directory;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::Connection;
use super::connect::{ConnectRequest, connect};
use super::exec::{Begun, ControlRequests, Outcome, begin};
use crate::{directories, error};

/// The time in which the server must close a sandbox.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(90);

/// A backend that creates one sandbox through a server.
#[derive(Debug)]
pub struct ResidentBackend {
    name: String,
    level: Level,
    connects: bool,
    stream: Mutex<Option<UnixStream>>,
}

impl From<Connection> for ResidentBackend {
    fn from(connection: Connection) -> Self {
        let Connection { stream, backend, level, connects, .. } = connection;
        Self { name: backend, level, connects, stream: Mutex::new(Some(stream)) }
    }
}

#[async_trait]
impl Backend for ResidentBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn level(&self) -> Level {
        self.level
    }

    fn capabilities(&self) -> Capabilities {
        let others = [
            Capability::StreamingStdin,
            Capability::Terminal,
            Capability::HostWorkspace,
            Capability::RootDirectory,
            Capability::UnixPrograms,
        ];
        others.into_iter().chain(self.connects.then_some(Capability::Connect)).collect()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        spec.validate()?;
        let (spec, directories) = directories::open(&spec)?;
        let stream = self.stream.lock().take();
        let stream = stream.ok_or_else(|| {
            Error::new(ErrorKind::ResourceExhausted, "create", "a connection to a server serves one sandbox only")
                .with_remedy("connect again")
        })?;
        let sandbox = ResidentSandbox {
            spec,
            directories,
            stream: Mutex::new(Some(stream)),
            unnamed: SandboxId::new("not-made-yet"),
            unknown: Posture::default(),
            run: OnceLock::new(),
        };
        Ok(Arc::new(sandbox))
    }

    async fn restore(&self, _snapshot: Snapshot, _spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Err(not_here("restore"))
    }

    async fn prepare(&self, _spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(not_here("warm"))
    }
}

fn not_here(operation: &'static str) -> Error {
    Error::unsupported(operation, "a server connection only runs one command in one sandbox")
        .with_remedy("use the backend itself")
}

/// The one run of a sandbox.
#[derive(Debug)]
struct Run {
    id: SandboxId,
    posture: Posture,
    exit: ExitWatch,
    control: Arc<watch::Sender<ControlRequests>>,
    connects: mpsc::Sender<ConnectRequest>,
    outcome: watch::Receiver<Outcome>,
}

#[derive(Debug)]
struct ResidentSandbox {
    spec: Spec,
    /// The directories of the spec, open as long as the sandbox lives.
    directories: Vec<Directory>,
    stream: Mutex<Option<UnixStream>>,
    unnamed: SandboxId,
    unknown: Posture,
    run: OnceLock<Run>,
}

#[async_trait]
impl Sandbox for ResidentSandbox {
    fn id(&self) -> &SandboxId {
        self.run.get().map_or(&self.unnamed, |run| &run.id)
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        self.run.get().map_or(&self.unknown, |run| &run.posture)
    }

    /// Connects to a server that the sandbox's command has started.
    async fn connect(&self, port: u16) -> Result<contract::Connection> {
        let run = self.run.get().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "connect", "the sandbox has no command yet, so no program listens")
                .with_remedy("start its command first")
        })?;
        connect(&run.connects, port).await
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        let stream = self.stream.lock().take();
        let stream = stream.ok_or_else(|| not_here("start"))?;
        let Begun { handle, sandbox, posture, control, connects, outcome } =
            begin(stream, &self.spec, &self.directories, request).await?;
        // The stream can be taken once, so this is the only run.
        let _ = self.run.set(Run { id: sandbox, posture, exit: handle.exit_watch(), control, connects, outcome });
        Ok(handle)
    }

    async fn read_file(&self, _path: &SandboxPath) -> Result<FileReader> {
        Err(not_here("read_file"))
    }

    async fn write_file(&self, _path: &SandboxPath, _contents: FileReader) -> Result<u64> {
        Err(not_here("write_file"))
    }

    async fn put(&self, _path: &SandboxPath, _entry: NewEntry) -> Result<u64> {
        Err(not_here("put"))
    }

    async fn list_dir(&self, _path: &SandboxPath) -> Result<Vec<DirEntry>> {
        Err(not_here("list_dir"))
    }

    async fn remove(&self, _path: &SandboxPath) -> Result<()> {
        Err(not_here("remove"))
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        Err(not_here("snapshot"))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        Err(not_here("fork"))
    }

    async fn pause(&self) -> Result<()> {
        Err(not_here("pause"))
    }

    async fn resume(&self) -> Result<()> {
        Err(not_here("resume"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        Err(not_here("usage"))
    }

    /// Returns when the exec has ended. If a host directory is mounted, waits until nothing can write there any more.
    /// The server removes the rest of the sandbox by itself.
    async fn close(&self) -> Result<()> {
        drop(self.stream.lock().take());
        let Some(run) = self.run.get() else { return Ok(()) };
        run.end();
        let is_mounted = self.spec.workspace().host_directory().is_some();
        if run.exit.is_over() && !is_mounted {
            return Ok(());
        }
        let mut outcome = run.outcome.clone();
        let ended = tokio::time::timeout(CLOSE_TIMEOUT, outcome.wait_for(|outcome| *outcome != Outcome::NotYet)).await;
        let outcome = match ended {
            Ok(Ok(outcome)) => outcome.clone(),
            _ => Outcome::Lost,
        };
        match outcome {
            Outcome::Closed(None) => Ok(()),
            Outcome::Closed(Some(error)) => Err(error.into()),
            Outcome::NotYet | Outcome::Lost => Err(error::lost("close")),
        }
    }
}

impl Run {
    fn end(&self) {
        self.control.send_modify(|control| control.kill = true);
    }
}

impl Drop for ResidentSandbox {
    fn drop(&mut self) {
        if let Some(run) = self.run.get() {
            run.end();
        }
    }
}

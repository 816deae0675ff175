//! A simulated sandbox.

use std::io::Cursor;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Capability, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, NewEntry, Posture, Result, Sandbox,
    SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec,
};
use tokio::io::AsyncReadExt;

use crate::NAME;
use crate::backend::{ForkContext, Frozen};
use crate::exec;
use crate::fault::FaultPoint;
use crate::state::Shared;
use crate::tree::{NewNode, Parents, Tree};

/// A sandbox. The execs hold only the shared state, so dropping the sandbox ends them.
#[derive(Debug)]
pub(crate) struct SimulatedSandbox {
    shared: Arc<Shared>,
    forks: Arc<ForkContext>,
}

impl SimulatedSandbox {
    pub(crate) fn new(shared: Arc<Shared>, forks: Arc<ForkContext>) -> Self {
        Self { shared, forks }
    }

    /// Begins a call: checks the capability, injects a fault, and checks that the sandbox still exists.
    async fn enter(&self, point: FaultPoint, needs: Option<Capability>) -> Result<()> {
        if needs.is_some_and(|needed| !self.shared.host.config.capabilities.contains(&needed)) {
            return Err(Error::unsupported(point.operation(), "this backend does not support it"));
        }
        match point {
            FaultPoint::Usage | FaultPoint::Pause | FaultPoint::Resume => drop(self.shared.open(point.operation())?),
            _ => drop(self.shared.active(point.operation())?),
        }
        self.shared.host.faults.pass(point).await.map(drop)
    }

    /// Reads the contents of a new file, and buffers no more than could ever be stored.
    async fn received(&self, operation: &'static str, contents: FileReader) -> Result<Vec<u8>> {
        let limit = self.shared.open(operation)?.tree.limit();
        let mut data = Vec::new();
        let mut source = contents.take(limit.saturating_add(1));
        let read = source.read_to_end(&mut data).await;
        read.map_err(|error| Error::new(ErrorKind::Io, operation, "cannot read the source").with_source(error))?;
        Ok(data)
    }

    /// Returns a copy of the current workspace.
    fn freeze(&self, operation: &'static str) -> Result<Tree> {
        Ok(self.shared.open(operation)?.tree.clone())
    }
}

impl Drop for SimulatedSandbox {
    fn drop(&mut self) {
        self.shared.shut();
    }
}

#[async_trait]
impl Sandbox for SimulatedSandbox {
    fn id(&self) -> &SandboxId {
        &self.shared.id
    }

    fn spec(&self) -> &Spec {
        &self.shared.spec
    }

    fn posture(&self) -> &Posture {
        &self.shared.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        drop(self.shared.active("start")?);
        let nth = self.shared.host.faults.pass(FaultPoint::Start).await?;
        exec::start(&self.shared, request, self.shared.host.faults.of_exec(nth))
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.enter(FaultPoint::ReadFile, Some(Capability::Files)).await?;
        let state = self.shared.open("read_file")?;
        let contents = state.tree.read(path.as_str()).map_err(|error| error.into_error("read_file", path.as_str()))?;
        Ok(Box::new(Cursor::new(Contents(contents))))
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.enter(FaultPoint::WriteFile, Some(Capability::Files)).await?;
        let data = self.received("write_file", contents).await?;
        let size = data.len() as u64;
        let mut state = self.shared.open("write_file")?;
        let written = state.tree.write(path.as_str(), data, Parents::Make);
        written.map_err(|error| error.into_error("write_file", path.as_str()))?;
        Ok(size)
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        self.enter(FaultPoint::WriteFile, Some(Capability::Files)).await?;
        let (new, mode, modified) = match entry {
            NewEntry::File { mode, modified, contents } => {
                (NewNode::File(self.received("put", contents).await?), mode, modified)
            }
            NewEntry::Directory { mode } => (NewNode::Directory, mode, 0),
            NewEntry::Symlink { target } => (NewNode::Symlink(target), 0o777, 0),
        };
        let size = if let NewNode::File(data) = &new { data.len() as u64 } else { 0 };
        let mut state = self.shared.open("put")?;
        let put = state.tree.put(path.as_str(), new, (mode, modified));
        put.map_err(|error| error.into_error("put", path.as_str()))?;
        Ok(size)
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.enter(FaultPoint::ListDir, Some(Capability::Files)).await?;
        let state = self.shared.open("list_dir")?;
        let entries = state.tree.list(path.as_str()).map_err(|error| error.into_error("list_dir", path.as_str()))?;
        if entries.len() > 100_000 {
            return Err(Error::new(ErrorKind::ResourceExhausted, "list_dir", "more than 100,000 entries"));
        }
        Ok(entries)
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.enter(FaultPoint::Rename, Some(Capability::Files)).await?;
        let mut state = self.shared.open("rename")?;
        let renamed = state.tree.rename(from.as_str(), to.as_str());
        renamed.map_err(|error| error.into_error("rename", to.as_str()))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.enter(FaultPoint::Remove, Some(Capability::Files)).await?;
        let mut state = self.shared.open("remove")?;
        state.tree.remove(path.as_str()).map_err(|error| error.into_error("remove", path.as_str()))
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.enter(FaultPoint::Snapshot, Some(Capability::Snapshot)).await?;
        Ok(Snapshot::new(NAME, Frozen(self.freeze("snapshot")?)).with_tenant(self.shared.spec.tenant().clone()))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        self.enter(FaultPoint::Fork, Some(Capability::Fork)).await?;
        Ok(self.forks.fork(&self.shared, self.freeze("fork")?))
    }

    async fn pause(&self) -> Result<()> {
        self.enter(FaultPoint::Pause, Some(Capability::Pause)).await?;
        self.shared.set_paused("pause", true)
    }

    async fn resume(&self) -> Result<()> {
        self.enter(FaultPoint::Resume, Some(Capability::Pause)).await?;
        self.shared.set_paused("resume", false)
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.enter(FaultPoint::Usage, None).await?;
        let state = self.shared.open("usage")?;
        Ok(SandboxUsage {
            cpu_seconds: Some(state.cpu.as_secs_f64()),
            memory_bytes: Some(state.memory),
            peak_memory_bytes: Some(state.peak_memory),
            processes: Some(state.processes),
            disk_bytes: Some(state.tree.bytes()),
        })
    }

    async fn close(&self) -> Result<()> {
        self.shared.shut();
        self.shared.quiet().await;
        self.shared.host.faults.pass(FaultPoint::Close).await.map(drop)
    }
}

/// A file's bytes, shared with the tree.
struct Contents(Arc<Vec<u8>>);

impl AsRef<[u8]> for Contents {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

//! One live machine, as the contract sees it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, Error, ExecHandle, ExecRequest, FileReader, Posture, Result, Sandbox, SandboxId, SandboxPath,
    SandboxUsage, Snapshot, Spec,
};
use tokio::sync::Mutex;

use crate::make::{Host, Raw};

/// A sandbox that is a machine. Dropping it ends everything in it.
pub(crate) struct VmSandbox {
    spec: Spec,
    posture: Posture,
    raw: Raw,
    /// Whether it is paused, and what it used when it was.
    paused: Mutex<Option<SandboxUsage>>,
    closed: AtomicBool,
}

impl VmSandbox {
    /// Has one made and measured. Whatever falls short of the spec ends it again.
    pub(crate) async fn make(host: &Arc<Host>, spec: Spec) -> Result<Self> {
        let raw = Raw::make(host, &spec).await?;
        let posture = raw.judge(&spec).await?;
        Ok(Self { spec, posture, raw, paused: Mutex::new(None), closed: AtomicBool::new(false) })
    }

    fn open(&self, operation: &'static str) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(operation)) } else { Ok(()) }
    }
}

impl fmt::Debug for VmSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmSandbox").field("id", &self.raw.id).finish_non_exhaustive()
    }
}

fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, "the vm backend takes no snapshots of machines")
        .with_remedy("use the docker or the wasm backend, or copy the workspace by the file API")
}

#[async_trait]
impl Sandbox for VmSandbox {
    fn id(&self) -> &SandboxId {
        &self.raw.id
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
        self.raw.guest.start(&request, self.spec.limits()).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.open("read_file")?;
        self.raw.guest.read_file(path).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.open("write_file")?;
        self.raw.guest.write_file(path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.open("list_dir")?;
        self.raw.guest.list_dir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.open("remove")?;
        self.raw.guest.remove(path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        Err(unsupported("snapshot"))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        Err(unsupported("fork"))
    }

    async fn pause(&self) -> Result<()> {
        let mut paused = self.paused.lock().await;
        self.open("pause")?;
        if paused.is_some() {
            return Ok(());
        }
        // Nothing in it changes until it goes on.
        let usage = self.raw.guest.usage().await?;
        self.raw.guest.set_paused(true);
        if let Err(error) = self.raw.vm.pause().await {
            self.raw.guest.set_paused(false);
            return Err(error.into_error("pause"));
        }
        *paused = Some(usage);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        let mut paused = self.paused.lock().await;
        self.open("resume")?;
        if paused.is_none() {
            return Ok(());
        }
        self.raw.vm.resume().await.map_err(|error| error.into_error("resume"))?;
        self.raw.guest.set_paused(false);
        *paused = None;
        Ok(())
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.open("usage")?;
        let paused = self.paused.lock().await;
        match *paused {
            Some(usage) => Ok(usage),
            None => self.raw.guest.usage().await,
        }
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        self.raw.close().await
    }
}

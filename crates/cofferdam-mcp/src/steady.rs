//! A sandbox whose calls wait during a snapshot or fork, when it cannot start execs.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, ExecHandle, ExecRequest, FileReader, Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage,
    Snapshot, Spec,
};
use tokio::sync::RwLock;

/// A sandbox with a lock, shared by concurrent calls and exclusive for a snapshot or fork.
#[derive(Debug)]
pub struct Steady {
    sandbox: Arc<dyn Sandbox>,
    lock: RwLock<()>,
}

impl Steady {
    /// Wraps a sandbox.
    pub fn new(sandbox: Arc<dyn Sandbox>) -> Self {
        Self { sandbox, lock: RwLock::default() }
    }
}

#[async_trait]
impl Sandbox for Steady {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn spec(&self) -> &Spec {
        self.sandbox.spec()
    }

    fn posture(&self) -> &Posture {
        self.sandbox.posture()
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        let _guard = self.lock.read().await;
        self.sandbox.start(request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        let _guard = self.lock.read().await;
        self.sandbox.read_file(path).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        let _guard = self.lock.read().await;
        self.sandbox.read_file_from(path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        let _guard = self.lock.read().await;
        self.sandbox.write_file(path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let _guard = self.lock.read().await;
        self.sandbox.list_dir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        let _guard = self.lock.read().await;
        self.sandbox.remove(path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        let _guard = self.lock.write().await;
        self.sandbox.snapshot().await
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let _guard = self.lock.write().await;
        self.sandbox.fork().await
    }

    async fn pause(&self) -> Result<()> {
        self.sandbox.pause().await
    }

    async fn resume(&self) -> Result<()> {
        self.sandbox.resume().await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.sandbox.usage().await
    }

    async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }
}

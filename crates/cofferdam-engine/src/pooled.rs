//! A pool as a [`Backend`].
//!
//! It has the features of its inner backend, except the preparation of sandboxes for callers, because the pool itself
//! uses that.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, DirEntry, Error, ExecHandle, ExecRequest, FileReader, Level, Posture,
    PreparedSandbox, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec,
};
use parking_lot::Mutex;

use crate::pool::Origin;
use crate::{Lease, Pool, PoolConfig};

/// A [`Pool`] as a backend: `create` is a claim, and `close` frees the slot.
///
/// Name, level and capabilities are those of the inner backend, without [`Capability::Warm`]. Restored sandboxes and
/// forks occupy slots of the pool like all others.
#[derive(Debug)]
pub struct PooledBackend {
    pool: Pool,
}

impl PooledBackend {
    /// Creates a pool and wraps it. See [`Pool::new`].
    pub fn new(backend: Arc<dyn Backend>, template: Spec, config: PoolConfig) -> Result<Self> {
        Pool::new(backend, template, config).map(Self::from)
    }

    /// Returns the pool, for its metrics and its shutdown.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn wrap(&self, lease: Lease) -> Arc<dyn Sandbox> {
        PooledSandbox::of(lease, self.pool.origin())
    }
}

impl From<Pool> for PooledBackend {
    fn from(pool: Pool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Backend for PooledBackend {
    fn name(&self) -> &str {
        self.pool.backend().name()
    }

    fn level(&self) -> Level {
        self.pool.backend().level()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.pool.backend().capabilities();
        capabilities.remove(&Capability::Warm);
        capabilities
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(self.wrap(self.pool.claim(spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(self.wrap(self.pool.restore(snapshot, spec).await?))
    }

    async fn prepare(&self, _spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(Error::unsupported("warm", "a pool uses prepared sandboxes for its own claims")
            .with_remedy("create a sandbox from the pool, or prepare one with its inner backend"))
    }
}

/// A leased sandbox that frees its slot when it is closed or dropped.
#[derive(Debug)]
struct PooledSandbox {
    sandbox: Arc<dyn Sandbox>,
    lease: Mutex<Option<Lease>>,
    origin: Origin,
}

impl PooledSandbox {
    fn of(lease: Lease, origin: Origin) -> Arc<dyn Sandbox> {
        Arc::new(Self { sandbox: Arc::clone(lease.sandbox()), lease: Mutex::new(Some(lease)), origin })
    }
}

#[async_trait]
impl Sandbox for PooledSandbox {
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
        self.sandbox.start(request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.sandbox.read_file(path).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        self.sandbox.read_file_from(path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.sandbox.write_file(path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.sandbox.list_dir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.sandbox.remove(path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.sandbox.snapshot().await
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let fork = self.origin.fork(Arc::clone(&self.sandbox)).await?;
        Ok(Self::of(fork, self.origin.clone()))
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
        let lease = self.lease.lock().take();
        match lease {
            Some(lease) => lease.close().await,
            None => self.sandbox.close().await,
        }
    }
}

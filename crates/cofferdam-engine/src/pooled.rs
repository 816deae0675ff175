//! A pool as a [`Backend`].
//!
//! It has the features of its inner backend, except the preparation of sandboxes for callers, because the pool itself
//! uses that.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Backend, BackendLayer, LayeredSandbox, Result, Sandbox, SandboxLayer, Snapshot, Spec};
use parking_lot::Mutex;

use crate::pool::Origin;
use crate::{Lease, Pool, PoolConfig};

/// A [`Pool`] as a backend: `create` is a claim, and `close` frees the slot.
///
/// Name, level and capabilities are those of the inner backend, without the preparation of sandboxes. Restored sandboxes and
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
        Leased::wrap(lease, self.pool.origin())
    }
}

impl From<Pool> for PooledBackend {
    fn from(pool: Pool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl BackendLayer for PooledBackend {
    fn inner(&self) -> &dyn Backend {
        self.pool.backend()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(self.wrap(self.pool.claim(spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(self.wrap(self.pool.restore(snapshot, spec).await?))
    }
}

/// A layer that frees the slot of a leased sandbox when it is closed or dropped, and puts forks into slots of the same
/// pool.
#[derive(Debug)]
struct Leased {
    lease: Mutex<Option<Lease>>,
    origin: Origin,
}

impl Leased {
    fn wrap(lease: Lease, origin: Origin) -> Arc<dyn Sandbox> {
        let sandbox = Arc::clone(lease.sandbox());
        Arc::new(LayeredSandbox::new(sandbox, Self { lease: Mutex::new(Some(lease)), origin }))
    }
}

#[async_trait]
impl SandboxLayer for Leased {
    async fn fork(&self, inner: &Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        let fork = self.origin.fork(Arc::clone(inner)).await?;
        Ok(Self::wrap(fork, self.origin.clone()))
    }

    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        let lease = self.lease.lock().take();
        match lease {
            Some(lease) => lease.close().await,
            None => inner.close().await,
        }
    }
}

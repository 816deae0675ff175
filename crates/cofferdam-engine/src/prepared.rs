//! Prepared sandboxes and prepared interpreters as one [`Backend`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Backend, BackendLayer, ExecHandle, ExecRequest, Result, Sandbox, Snapshot, Spec};

use crate::{InterpreterMetrics, Interpreters, InterpretersConfig, Pool, PoolConfig, PooledBackend};

/// A [`PooledBackend`] whose single commands run in a prepared interpreter if one is compatible.
///
/// Name, level and capabilities are those of the pool. The sandboxes of interpreters are sandboxes of the pool.
#[derive(Debug)]
pub struct PreparedBackend {
    pool: Arc<PooledBackend>,
    interpreters: Interpreters,
    in_interpreters: AtomicU64,
}

impl PreparedBackend {
    /// Creates the pools, which begin to prepare sandboxes for `template`. See [`Pool::new`] and
    /// [`Interpreters::new`].
    ///
    /// Must be called in a tokio runtime with time enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid configuration or template, or outside of a runtime.
    pub fn new(
        backend: Arc<dyn Backend>,
        template: Spec,
        pool: PoolConfig,
        interpreters: InterpretersConfig,
    ) -> Result<Self> {
        let pool = Arc::new(PooledBackend::new(backend, template.clone(), pool)?);
        let interpreters = Interpreters::new(Arc::clone(&pool) as Arc<dyn Backend>, template, interpreters)?;
        Ok(Self { pool, interpreters, in_interpreters: AtomicU64::new(0) })
    }

    /// Returns the pool, for its metrics.
    pub fn pool(&self) -> &Pool {
        self.pool.pool()
    }

    /// Returns the metrics of each kind of interpreters.
    pub fn interpreters(&self) -> Vec<InterpreterMetrics> {
        self.interpreters.metrics()
    }

    /// Returns the number of commands that ran in prepared interpreters.
    pub fn in_interpreters(&self) -> u64 {
        self.in_interpreters.load(Ordering::Relaxed)
    }

    /// Closes prepared sandboxes and interpreters at once, and all others after `drain`. See [`Pool::shutdown`].
    pub async fn shutdown(&self, drain: Duration) -> Result<()> {
        let interpreters = self.interpreters.shutdown().await;
        self.pool().shutdown(drain).await.and(interpreters)
    }
}

#[async_trait]
impl BackendLayer for PreparedBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.pool
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.inner().create(spec).await
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        if let Some(taken) = self.interpreters.take(&spec, &request) {
            // If this fails, none of the code has run, and a cold start reports the error in the request.
            if let Ok((handle, sandbox)) = taken.start().await {
                self.in_interpreters.fetch_add(1, Ordering::Relaxed);
                return Ok((sandbox, handle));
            }
        }
        self.inner().start_one(spec, request).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.inner().restore(snapshot, spec).await
    }
}

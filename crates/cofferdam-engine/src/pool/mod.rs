//! A pool of sandboxes: some are prepared before their request, their total is bounded, and tenants are served
//! round-robin.
//!
//! ```text
//! claim --> waits for a slot --> idle sandbox claimed, or new one created --> Lease --> closed, slot free
//!              |                         |
//!              '--queue full, timeout, shut down, failed--> error
//! ```
//!
//! `slots` decides and is pure; this module carries them out. No sandbox is reused: it is destroyed after
//! its lease. The backend is responsible for the isolation boundary, and for claims that are as strong as creates.

pub(crate) mod backoff;
mod create;
mod lease;
mod queue;
mod refiller;
mod shared;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Completed, ExecRequest, Posture, Result, Sandbox, Snapshot, Spec, after_close};
use tokio::runtime::Handle;

pub use lease::Lease;

use crate::{PoolConfig, PoolMetrics, error};
use create::Operation;
use shared::Shared;

/// A pool of sandboxes of one backend, some of them prepared for requests like its template.
///
/// Dropping the pool closes idle sandboxes and rejects queued claims. Leased sandboxes live until their lease ends.
/// After that nothing is left.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Creates a pool over `backend` and starts to prepare sandboxes for specs like `template`. A backend without
    /// [`cofferdam_contract::Capability::Warm`] is pooled as well: bounded and round-robin, but each sandbox is created
    /// on request.
    ///
    /// Must be called in a tokio runtime with time enabled. The pool's tasks run in that runtime.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid configuration or template, or outside of a runtime.
    pub fn new(backend: Arc<dyn Backend>, template: Spec, config: PoolConfig) -> Result<Self> {
        config.validate()?;
        template.validate()?;
        let runtime = Handle::try_current().map_err(|missing| {
            cofferdam_contract::Error::invalid("configure", "a pool needs a tokio runtime").with_source(missing)
        })?;
        let shared = Arc::new(Shared::new(backend, template, config, runtime));
        shared.spawn(refiller::run(Arc::clone(&shared)));
        Ok(Self { shared })
    }

    /// Claims a sandbox for `spec`: an idle one that is compatible with the spec, or else a new one.
    ///
    /// # Behavior
    /// - The sandbox is equivalent to one that [`Backend::create`] creates for `spec`, and no other caller has used it.
    /// - While all slots are in use, the claim waits. Tenants are served round-robin, and each tenant in the order of
    ///   its calls.
    /// - Dropping the future cancels the claim and leaves nothing behind.
    ///
    /// # Errors
    /// - `ResourceExhausted` if a queue is full, or after the claim timeout.
    /// - `Closed` after the pool is shut down.
    /// - The errors of [`Backend::create`].
    pub async fn claim(&self, spec: Spec) -> Result<Lease> {
        self.shared.obtain(spec, Operation::Claim).await
    }

    /// Restores a snapshot in a slot of the pool.
    pub(crate) async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Lease> {
        self.shared.obtain(spec, Operation::Restore(snapshot)).await
    }

    /// Runs one command in a sandbox of its own.
    ///
    /// # Behavior
    /// - Returns when the command has ended. The sandbox is closed in the background, and its slot becomes free after
    ///   that.
    /// - If the workspace is a mounted host directory, returns after the sandbox is closed, so that no process left
    ///   running can still write there.
    /// - Output is collected without loss up to the request's `max_output`.
    pub async fn run(&self, spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        request.validate()?;
        let mounted = spec.workspace().host_directory().is_some();
        let lease = self.claim(spec).await?;
        let result = lease.exec(request).await;
        let posture = lease.posture().clone();
        let closed = if mounted { lease.close().await } else { Ok(()) };
        after_close(result.map(|completed| (completed, posture)), closed)
    }

    /// Returns the current state and the counters of the pool.
    pub fn metrics(&self) -> PoolMetrics {
        self.shared.metrics()
    }

    /// Returns the spec that sandboxes are prepared for.
    pub fn template(&self) -> &Spec {
        &self.shared.template
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin(Arc::clone(&self.shared))
    }

    /// Shuts the pool down. Idempotent.
    ///
    /// # Behavior
    /// - Rejects new and queued claims with `Closed`, and closes idle sandboxes.
    /// - Waits up to `grace` for leases to end, then closes the leased sandboxes.
    /// - After `Ok`, nothing is left.
    ///
    /// # Errors
    /// - `Unavailable` if sandboxes did not close within the configuration's `close_timeout`.
    /// - `Io` if closing a sandbox failed.
    pub async fn shutdown(&self, grace: Duration) -> Result<()> {
        let failed_before = self.shared.metrics().close_failures;
        self.shared.drain();
        if !self.shared.emptied_within(grace).await {
            self.shared.end_leases();
            if !self.shared.emptied_within(self.shared.config.close_timeout).await {
                return Err(error::close_timed_out(self.shared.used()));
            }
        }
        match self.shared.metrics().close_failures - failed_before {
            0 => Ok(()),
            failed => Err(error::closes_failed(failed)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.drain();
    }
}

/// The pool that a sandbox came from, so that a fork of it occupies a slot of the same pool.
#[derive(Debug, Clone)]
pub(crate) struct Origin(Arc<Shared>);

impl Origin {
    /// Forks a sandbox into a slot of the pool.
    pub(crate) async fn fork(&self, sandbox: Arc<dyn Sandbox>) -> Result<Lease> {
        let spec = sandbox.spec().clone();
        self.0.obtain(spec, Operation::Fork(sandbox)).await
    }
}

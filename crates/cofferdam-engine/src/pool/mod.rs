//! A pool of sandboxes: some made before their request, all bounded in number, tenants served in turn.
//!
//! ```text
//! claim --> waits for a place --> claimed from one that waits, or created --> Lease --> closed, place free
//!               |                         |
//!               '--full, too long, shut down, failed--> error
//! ```
//!
//! What to do is decided in `ledger`, which is pure; here it is carried out. Nothing is reused: what was leased once is
//! destroyed. How a wall is built, and whether a claim is as strong as a create, is the backend's affair.

pub(crate) mod backoff;
mod keeper;
mod lease;
mod ledger;
mod make;
mod queue;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Backend, Completed, ExecRequest, Posture, Result, Sandbox, Snapshot, Spec, Workspace, after_close,
};
use tokio::runtime::Handle;

pub use lease::Lease;

use crate::{PoolConfig, PoolMetrics, error};
use make::Make;
use shared::Shared;

/// Sandboxes of one backend, some of them ready for requests like its template.
///
/// Dropping it closes what waits and refuses who waits; what is leased lives on until its lease ends. Nothing is left
/// after that.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool over `backend`, which at once begins to make sandboxes ahead for specs like `template`. A backend that
    /// cannot do that is pooled all the same: bounded, in turn, and each sandbox made on request.
    ///
    /// Must be called in a tokio runtime with time enabled; the pool's own work is done in that runtime.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration or a template that contradicts itself, or outside of a runtime.
    pub fn new(backend: Arc<dyn Backend>, template: Spec, config: PoolConfig) -> Result<Self> {
        config.validate()?;
        template.validate()?;
        let runtime = Handle::try_current().map_err(|missing| {
            cofferdam_contract::Error::invalid("configure", "a pool needs a tokio runtime to work in")
                .with_source(missing)
        })?;
        let shared = Arc::new(Shared::new(backend, template, config, runtime));
        shared.spawn(keeper::keep(Arc::clone(&shared)));
        Ok(Self { shared })
    }

    /// Takes a sandbox for `spec`: one that waits if the spec fits it, else one made now.
    ///
    /// # Behavior
    /// - The sandbox is what [`Backend::create`] would have given for `spec`, and nobody had it before.
    /// - While all places are taken it waits: tenants are served in turn, and each in the order of its calls.
    /// - Fails with `ResourceExhausted` where too many wait already, or after the claim time-out.
    /// - Fails with `Closed` once the pool is shut down; else as a create fails.
    /// - Dropping the future gives the claim up, and leaves nothing behind.
    pub async fn claim(&self, spec: Spec) -> Result<Lease> {
        self.shared.obtain(spec, Make::Claim).await
    }

    /// Restores a snapshot in a place of the pool.
    pub(crate) async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Lease> {
        self.shared.obtain(spec, Make::Restore(snapshot)).await
    }

    /// Runs one command in a sandbox of its own.
    ///
    /// # Behavior
    /// - Answers when the command has ended; the sandbox is closed in the background, its place free after that.
    /// - Where the workspace is a directory of the host, answers only when the sandbox is closed, so that nothing
    ///   that was left running writes there any more.
    /// - Output is collected without loss up to the request's `max_output`.
    pub async fn run(&self, spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        request.validate()?;
        let lent = matches!(spec.workspace(), Workspace::HostDir { .. });
        let lease = self.claim(spec).await?;
        let result = lease.exec(request).await;
        let posture = lease.posture().clone();
        let closed = if lent { lease.close().await } else { Ok(()) };
        after_close(result.map(|completed| (completed, posture)), closed)
    }

    /// How the pool stands, and what happened so far.
    pub fn metrics(&self) -> PoolMetrics {
        self.shared.metrics()
    }

    /// The spec that sandboxes are made ahead for.
    pub fn template(&self) -> &Spec {
        &self.shared.template
    }

    /// How it is set up.
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin(Arc::clone(&self.shared))
    }

    /// Ends the pool. Idempotent.
    ///
    /// # Behavior
    /// - Refuses new claims and those that wait with `Closed`, and closes what waits for a claim.
    /// - Waits up to `patience` for leases to end, then closes their sandboxes under them.
    /// - Nothing is left when it returns `Ok`. It fails where a sandbox does not end within the configuration's
    ///   `close_timeout`, or where closing one failed.
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        let failed_before = self.shared.metrics().close_failures;
        self.shared.drain();
        if !self.shared.emptied_within(patience).await {
            self.shared.end_leases();
            if !self.shared.emptied_within(self.shared.config.close_timeout).await {
                return Err(error::not_ended(self.shared.used()));
            }
        }
        match self.shared.metrics().close_failures - failed_before {
            0 => Ok(()),
            failed => Err(error::failed_to_close(failed)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.drain();
    }
}

/// Where a sandbox came from, so that a copy of it has a place there too.
#[derive(Debug, Clone)]
pub(crate) struct Origin(Arc<Shared>);

impl Origin {
    /// Forks a sandbox into a place of the pool.
    pub(crate) async fn fork(&self, sandbox: Arc<dyn Sandbox>) -> Result<Lease> {
        let spec = sandbox.spec().clone();
        self.0.obtain(spec, Make::Fork(sandbox)).await
    }
}

//! A backend that keeps the changes of copy-on-write workspaces when its sandboxes are closed.
//!
//! A server's clients create and close sandboxes at any time. So the changes are kept by the close itself, whatever
//! causes it: a call, the end of a session, the idle time, or the end of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use cofferdam::{Backend, BackendLayer, LayeredSandbox, Result, Sandbox, SandboxLayer, Snapshot, Spec, Workspace};

use super::review;
use crate::report;
use crate::style::Tone;

/// Returns a backend that keeps the changes of its sandboxes.
pub fn around(inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
    Arc::new(KeepingBackend { inner })
}

#[derive(Debug)]
struct KeepingBackend {
    inner: Arc<dyn Backend>,
}

#[async_trait]
impl BackendLayer for KeepingBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.inner.create(spec).await.map(Keeping::around)
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.inner.restore(snapshot, spec).await.map(Keeping::around)
    }
}

/// A layer that keeps the changes once, at the first close.
#[derive(Debug, Default)]
struct Keeping {
    is_closed: AtomicBool,
}

impl Keeping {
    fn around(sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        match sandbox.spec().workspace() {
            Workspace::CopyOnWrite { .. } => Arc::new(LayeredSandbox::new(sandbox, Self::default())),
            _ => sandbox,
        }
    }
}

#[async_trait]
impl SandboxLayer for Keeping {
    async fn fork(&self, inner: &Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        inner.fork().await.map(Self::around)
    }

    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        if !self.is_closed.swap(true, Ordering::AcqRel)
            && let Err(error) = review::keep(inner).await
        {
            report::remark(&format!("the changes of a workspace are lost: {error}"), Tone::Bad);
        }
        inner.close().await
    }
}

//! Layers around a backend: one for each concern (traces, quota, audit, metrics), and one for volumes.
//!
//! A [`Concern`] says what happens before and after each create, exec and close. [`Around`] puts it around a backend and
//! around each of its sandboxes, and forwards everything else.

pub mod audit;
mod egress;
pub mod metrics;
pub mod quota;
pub mod traces;
pub mod volumes;

use std::fmt;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, BackendLayer, Error, ErrorKind, ExecHandle, ExecRequest, Exit, LayeredSandbox, NetworkPolicy, Result,
    Sandbox, SandboxLayer, Snapshot, Spec,
};
use tracing::Instrument;

/// One concern of all sandboxes of a backend.
#[async_trait]
pub trait Concern: Send + Sync + fmt::Debug + 'static {
    /// The state of one sandbox. Dropping it undoes what is left of it.
    type Held: Send + Sync + fmt::Debug + 'static;
    /// The state of one exec. Dropping it means that the exec was abandoned.
    type Exec: Send + 'static;

    /// Returns true if a sandbox must be known to the concern before its first command starts.
    fn separates_start(&self, _: &Spec) -> bool {
        false
    }

    /// Begins a create. May wait, and may refuse it.
    async fn enter(&self, spec: &Spec) -> Result<Self::Held>;

    /// Creates the sandbox in what is inside. The concern takes over a sandbox that is refused there and not closed.
    fn creating<T: Send>(
        &self,
        _held: &Arc<Self::Held>,
        create: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send {
        create
    }

    /// Ends a create.
    async fn created(&self, held: &Self::Held, created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()>;

    /// Begins an exec. May refuse it.
    async fn starting(&self, held: &Self::Held, spec: &Spec, request: &ExecRequest) -> Result<Self::Exec>;

    /// Returns the request of an exec that the inner backend gets.
    fn traced(&self, _: &Self::Exec, request: ExecRequest) -> ExecRequest {
        request
    }

    /// Ends an exec, before its exit is reported.
    async fn ended(&self, held: &Self::Held, exec: Self::Exec, outcome: &Result<Exit>);

    /// Replaces the network policy of a sandbox. May refuse it.
    async fn set_network(&self, _held: &Self::Held, inner: &dyn Sandbox, policy: NetworkPolicy) -> Result<()> {
        inner.set_network(policy).await
    }

    /// Begins the close of a sandbox.
    async fn closing(&self, held: &Self::Held, inner: &dyn Sandbox);

    /// Ends a sandbox that is gone. Called at least once, unless the sandbox is dropped.
    async fn closed(&self, held: &Self::Held);

    /// Reports that a close failed: the sandbox may still exist.
    fn close_failed(&self, _held: &Arc<Self::Held>, _error: &Error) {}
}

/// Returns true if nothing is left of a sandbox after its close.
fn is_gone(closed: &Result<()>) -> bool {
    closed.as_ref().err().is_none_or(|error| matches!(error.kind(), ErrorKind::Closed | ErrorKind::NotFound))
}

/// A backend with a concern around it.
#[derive(Debug)]
pub struct Around<C> {
    inner: Arc<dyn Backend>,
    concern: Arc<C>,
}

impl<C: Concern> Around<C> {
    /// Puts a concern around a backend.
    pub fn new(inner: Arc<dyn Backend>, concern: Arc<C>) -> Self {
        Self { inner, concern }
    }

    /// Begins a create.
    async fn enter(&self, spec: &Spec) -> Result<Layer<C>> {
        Ok(Layer { concern: Arc::clone(&self.concern), held: Arc::new(self.concern.enter(spec).await?) })
    }

    fn span(&self) -> tracing::Span {
        tracing::info_span!("create", backend = self.inner.name())
    }
}

/// Closes a sandbox that no caller gets, and returns the error for the caller. If the close fails, the quota of the
/// create remains, and the sandbox is closed again.
async fn refuse(sandbox: Arc<dyn Sandbox>, error: Error) -> Error {
    let closed = sandbox.close().await;
    if let Some(failed) = closed.as_ref().err().filter(|_| !is_gone(&closed)) {
        quota::keep_unclosed(sandbox, failed);
    }
    error.with_failed_close(closed)
}

/// A concern around a sandbox.
#[derive(Debug)]
struct Layer<C: Concern> {
    concern: Arc<C>,
    held: Arc<C::Held>,
}

impl<C: Concern> Layer<C> {
    /// Creates a sandbox, and wraps it. The concern may refuse it.
    async fn make(self, create: impl Future<Output = Result<Arc<dyn Sandbox>>> + Send) -> Result<Arc<dyn Sandbox>> {
        let inner = match self.concern.creating(&self.held, create).await {
            Ok(inner) => inner,
            Err(error) => return Err(self.failed(error).await),
        };
        let created = self.concern.created(&self.held, Ok(&inner)).await;
        let sandbox = self.around(inner);
        match created {
            Ok(()) => Ok(sandbox),
            Err(error) => Err(refuse(sandbox, error).await),
        }
    }

    fn around(self, inner: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        Arc::new(LayeredSandbox::new(inner, self))
    }

    /// Ends a create that failed. The error of the concern comes first.
    async fn failed(&self, error: Error) -> Error {
        self.concern.created(&self.held, Err(&error)).await.err().unwrap_or(error)
    }

    /// Reports the end of an exec to the concern before anything else learns it.
    fn watch(&self, handle: ExecHandle, exec: C::Exec) -> ExecHandle {
        let (concern, held) = (Arc::clone(&self.concern), Arc::clone(&self.held));
        handle.before_exit(async move |outcome| {
            concern.ended(&held, exec, &outcome).await;
            outcome
        })
    }
}

#[async_trait]
impl<C: Concern> SandboxLayer for Layer<C> {
    async fn start(&self, inner: &dyn Sandbox, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        let exec = self.concern.starting(&self.held, inner.spec(), &request).await?;
        let request = self.concern.traced(&exec, request);
        let span = tracing::info_span!("start", sandbox = inner.id().as_str());
        match inner.start(request).instrument(span).await {
            Ok(handle) => Ok(self.watch(handle, exec)),
            Err(error) => {
                self.concern.ended(&self.held, exec, &Err(error.clone())).await;
                Err(error)
            }
        }
    }

    async fn fork(&self, inner: &Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        let held = Arc::new(self.concern.enter(inner.spec()).await?);
        Self { concern: Arc::clone(&self.concern), held }.make(inner.fork()).await
    }

    async fn set_network(&self, inner: &dyn Sandbox, policy: NetworkPolicy) -> Result<()> {
        self.concern.set_network(&self.held, inner, policy).await
    }

    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        self.concern.closing(&self.held, inner).await;
        let closed = inner.close().await;
        match &closed {
            Err(error) if !is_gone(&closed) => self.concern.close_failed(&self.held, error),
            _ => self.concern.closed(&self.held).await,
        }
        closed
    }
}

#[async_trait]
impl<C: Concern> BackendLayer for Around<C> {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        spec.validate()?;
        self.enter(&spec).await?.make(self.inner.create(spec).instrument(self.span())).await
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        if self.concern.separates_start(&spec) {
            let sandbox = BackendLayer::create(self, spec).await?;
            return match sandbox.start(request).await {
                Ok(handle) => Ok((sandbox, handle)),
                Err(error) => Err(refuse(sandbox, error).await),
            };
        }
        let layer = self.enter(&spec).await?;
        let exec = self.concern.starting(&layer.held, &spec, &request).await?;
        let request = self.concern.traced(&exec, request);
        match self.concern.creating(&layer.held, self.inner.start_one(spec, request)).await {
            Ok((inner, handle)) => {
                // The concern measures the sandbox when the command ends, so it learns of the sandbox first.
                let created = self.concern.created(&layer.held, Ok(&inner)).await;
                let handle = layer.watch(handle, exec);
                let sandbox = layer.around(inner);
                if let Err(error) = created {
                    // The error of the concern comes first.
                    let _ = handle.close().await;
                    return Err(refuse(sandbox, error).await);
                }
                Ok((sandbox, handle))
            }
            Err(error) => {
                self.concern.ended(&layer.held, exec, &Err(error.clone())).await;
                Err(layer.failed(error).await)
            }
        }
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.enter(&spec).await?.make(self.inner.restore(snapshot, spec).instrument(self.span())).await
    }
}

/// A sandbox that a concern inspects without keeping it alive.
pub(crate) type WeakSandbox = Weak<dyn Sandbox>;

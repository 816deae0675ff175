//! Layers around a backend, each for one concern: traces, quota, audit, metrics.
//!
//! A [`Concern`] says what happens before and after each create, exec and close. [`Around`] puts it around a backend and
//! around each of its sandboxes, and forwards everything else.

pub mod audit;
mod egress;
pub mod metrics;
pub mod quota;
pub mod traces;

use std::fmt;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Completed, Error, ErrorKind, ExecHandle, ExecRequest, Exit, LayeredSandbox,
    Level, NetworkPolicy, Posture, PreparedSandbox, Result, Sandbox, SandboxLayer, Snapshot, Spec, after_close,
    collect,
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

    async fn made(
        &self,
        spec: &Spec,
        made: impl Future<Output = Result<Arc<dyn Sandbox>>> + Send,
    ) -> Result<Arc<dyn Sandbox>> {
        let held = Arc::new(self.concern.enter(spec).await?);
        let layer = Layer { concern: Arc::clone(&self.concern), held };
        let span = tracing::info_span!("create", backend = self.inner.name());
        layer.wrap(made.instrument(span).await).await
    }
}

/// A concern around a sandbox.
#[derive(Debug)]
struct Layer<C: Concern> {
    concern: Arc<C>,
    held: Arc<C::Held>,
}

impl<C: Concern> Layer<C> {
    /// Wraps a created sandbox.
    async fn wrap(self, made: Result<Arc<dyn Sandbox>>) -> Result<Arc<dyn Sandbox>> {
        match made {
            Err(error) => {
                self.concern.created(&self.held, Err(&error)).await?;
                Err(error)
            }
            Ok(inner) => {
                if let Err(error) = self.concern.created(&self.held, Ok(&inner)).await {
                    return Err(error.with_failed_close(self.close(&*inner).await));
                }
                Ok(Arc::new(LayeredSandbox::new(inner, self)))
            }
        }
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
        let layer = Self { concern: Arc::clone(&self.concern), held };
        layer.wrap(inner.fork().await).await
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
impl<C: Concern> Backend for Around<C> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn level(&self) -> Level {
        self.inner.level()
    }

    fn capabilities(&self) -> Capabilities {
        // A prepared sandbox belongs to no tenant. Pools are inside of these layers.
        let mut capabilities = self.inner.capabilities();
        capabilities.remove(&Capability::Warm);
        capabilities
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        spec.validate()?;
        self.made(&spec.clone(), self.inner.create(spec)).await
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        if self.concern.separates_start(&spec) {
            let sandbox = self.create(spec).await?;
            return match sandbox.start(request).await {
                Ok(handle) => Ok((sandbox, handle)),
                Err(error) => Err(error.with_failed_close(sandbox.close().await)),
            };
        }
        let held = Arc::new(self.concern.enter(&spec).await?);
        let layer = Layer { concern: Arc::clone(&self.concern), held };
        let exec = self.concern.starting(&layer.held, &spec, &request).await?;
        let request = self.concern.traced(&exec, request);
        match self.inner.start_one(spec, request).await {
            Ok((inner, handle)) => {
                // The concern measures the sandbox when the command ends, so it learns of the sandbox first.
                let created = self.concern.created(&layer.held, Ok(&inner)).await;
                let handle = layer.watch(handle, exec);
                if let Err(error) = created {
                    // The error of the concern comes first.
                    let _ = handle.close().await;
                    return Err(error.with_failed_close(layer.close(&*inner).await));
                }
                Ok((Arc::new(LayeredSandbox::new(inner, layer)), handle))
            }
            Err(error) => {
                self.concern.ended(&layer.held, exec, &Err(error.clone())).await;
                self.concern.created(&layer.held, Err(&error)).await?;
                Err(error)
            }
        }
    }

    async fn run(&self, spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        // The backend's own `run` shows no sandbox that could be measured.
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let (sandbox, handle) = self.start_one(spec, request).await?;
        let completed = collect(&handle).await;
        let posture = sandbox.posture().clone();
        after_close(completed.map(|completed| (completed, posture)), sandbox.close().await)
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.made(&spec.clone(), self.inner.restore(snapshot, spec)).await
    }

    async fn prepare(&self, _: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(Error::unsupported("prepare", "a server's backend prepares no sandboxes for others"))
    }
}

/// A sandbox that a concern inspects without keeping it alive.
pub(crate) type WeakSandbox = Weak<dyn Sandbox>;

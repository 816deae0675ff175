//! Layers around a backend and around a sandbox.
//!
//! A layer changes some calls of a backend ([`BackendLayer`]) or of a sandbox ([`SandboxLayer`]). All other calls reach
//! what is inside, so that a layer contains its own behavior only. Clippy refuses an implementation here that leaves a
//! method of [`Backend`] or [`Sandbox`] to its default body, which would not reach what is inside.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use tokio::io::AsyncWrite;

use crate::{
    Backend, Capabilities, Capability, Completed, Connection, CopyOut, CopyReport, DirEntry, Error, ExecHandle,
    ExecRequest, FileReader, Level, NetworkDenial, NetworkEvent, NetworkPolicy, NetworkUsage, NewEntry, Posture,
    PreparedSandbox, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec, WatchEvents, WatchOptions,
    WorkspaceChanges, backend::run_one, collect,
};

/// A layer around a backend, which makes it a [`Backend`] itself.
///
/// Every sandbox comes from a method of the layer, so that none evades it. A layer prepares no sandboxes: one that the
/// inner backend prepared would evade the layer when it is claimed. So pools are inside of layers.
#[async_trait]
pub trait BackendLayer: Send + Sync + fmt::Debug {
    /// Returns the inner backend, which also has the name and the level that callers see.
    fn inner(&self) -> &dyn Backend;

    /// Returns the optional features that callers see: by default those of the inner backend without
    /// [`Capability::Warm`].
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner().capabilities();
        capabilities.remove(&Capability::Warm);
        capabilities
    }

    /// Creates a sandbox.
    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Creates a sandbox for a single command and starts the command. By default this calls [`Self::create`].
    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        self.create(spec).await?.start_or_close(request).await
    }

    /// Creates a sandbox from a snapshot.
    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Prepares a sandbox. A layer that overrides this adds [`Capability::Warm`], and applies to the claimed sandbox.
    async fn prepare(&self, _spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        let remedy = "create a sandbox, or prepare one with the inner backend";
        Err(Error::unsupported("warm", "a layer around a backend prepares no sandboxes").with_remedy(remedy))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<T: BackendLayer> Backend for T {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn level(&self) -> Level {
        self.inner().level()
    }

    fn capabilities(&self) -> Capabilities {
        BackendLayer::capabilities(self)
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        BackendLayer::create(self, spec).await
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        BackendLayer::start_one(self, spec, request).await
    }

    async fn run(&self, spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        run_one(self, spec, request).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        BackendLayer::restore(self, snapshot, spec).await
    }

    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        BackendLayer::prepare(self, spec).await
    }
}

/// A permit for one call, which lasts as long as the value. `None` if the layer admits every call.
pub type Permit<'a> = Option<Box<dyn Send + 'a>>;

/// The relation of a call to concurrent calls of the same sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// The call may run beside other calls: a start, or access to files.
    Shared,
    /// The call copies the sandbox: a snapshot or a fork.
    Exclusive,
}

/// The behavior of a layer. By default, all calls reach the inner sandbox unchanged.
#[async_trait]
pub trait SandboxLayer: Send + Sync + fmt::Debug {
    /// Returns the spec that callers see.
    fn spec<'a>(&'a self, inner: &'a dyn Sandbox) -> &'a Spec {
        inner.spec()
    }

    /// Returns the posture that callers see.
    fn posture<'a>(&'a self, inner: &'a dyn Sandbox) -> &'a Posture {
        inner.posture()
    }

    /// Waits until a call may begin. Calls of `pause`, `resume`, `usage` and `close` need no permit.
    async fn admit<'a>(&'a self, _sharing: Sharing) -> Permit<'a> {
        None
    }

    /// Returns the changes of a copy-on-write workspace.
    async fn changes(&self, inner: &Arc<dyn Sandbox>) -> Result<WorkspaceChanges> {
        inner.changes().await
    }

    /// Takes a snapshot of the sandbox.
    async fn snapshot(&self, inner: &dyn Sandbox) -> Result<Snapshot> {
        inner.snapshot().await
    }

    /// Starts a command. A layer that counts, records or refuses commands overrides this.
    async fn start(&self, inner: &dyn Sandbox, request: ExecRequest) -> Result<ExecHandle> {
        inner.start(request).await
    }

    /// Forks the sandbox. A layer that also applies to copies overrides this.
    async fn fork(&self, inner: &Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        inner.fork().await
    }

    /// Replaces the network policy. A layer that ends the network overrides this.
    async fn set_network(&self, inner: &dyn Sandbox, policy: NetworkPolicy) -> Result<()> {
        inner.set_network(policy).await
    }

    /// Closes the sandbox.
    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        inner.close().await
    }
}

/// A sandbox with a layer around it.
#[derive(Debug)]
pub struct LayeredSandbox<L> {
    inner: Arc<dyn Sandbox>,
    layer: L,
}

impl<L: SandboxLayer> LayeredSandbox<L> {
    /// Puts a layer around a sandbox.
    pub fn new(inner: Arc<dyn Sandbox>, layer: L) -> Self {
        Self { inner, layer }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: SandboxLayer> Sandbox for LayeredSandbox<L> {
    fn id(&self) -> &SandboxId {
        self.inner.id()
    }

    fn spec(&self) -> &Spec {
        self.layer.spec(&*self.inner)
    }

    fn posture(&self) -> &Posture {
        self.layer.posture(&*self.inner)
    }

    fn network_denials(&self) -> Vec<NetworkDenial> {
        self.inner.network_denials()
    }

    fn network_usage(&self) -> Option<NetworkUsage> {
        self.inner.network_usage()
    }

    fn network_events(&self) -> Option<tokio::sync::broadcast::Receiver<NetworkEvent>> {
        self.inner.network_events()
    }

    fn network_policy(&self) -> NetworkPolicy {
        self.inner.network_policy()
    }

    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        self.layer.set_network(&*self.inner, policy).await
    }

    async fn connect(&self, port: u16) -> Result<Connection> {
        self.inner.connect(port).await
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.layer.start(&*self.inner, request).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<Completed> {
        // Through the start of the layer.
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        collect(self.start(request).await?).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.read_file(path).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.read_file_from(path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.write_file(path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.list_dir(path).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.put(path, entry).await
    }

    async fn copy_in(&self, destination: &SandboxPath, tar: FileReader) -> Result<CopyReport> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.copy_in(destination, tar).await
    }

    async fn copy_out(&self, wanted: &CopyOut, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<CopyReport> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.copy_out(wanted, into).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.remove(path).await
    }

    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.inner.watch(path, options).await
    }

    async fn changes(&self) -> Result<WorkspaceChanges> {
        let _permit = self.layer.admit(Sharing::Shared).await;
        self.layer.changes(&self.inner).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        let _permit = self.layer.admit(Sharing::Exclusive).await;
        self.layer.snapshot(&*self.inner).await
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let _permit = self.layer.admit(Sharing::Exclusive).await;
        self.layer.fork(&self.inner).await
    }

    async fn pause(&self) -> Result<()> {
        self.inner.pause().await
    }

    async fn resume(&self) -> Result<()> {
        self.inner.resume().await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.inner.usage().await
    }

    async fn close(&self) -> Result<()> {
        self.layer.close(&*self.inner).await
    }
}

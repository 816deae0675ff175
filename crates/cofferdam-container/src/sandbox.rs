//! The sandbox of the contract over one running container.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use cofferdam_contract::{
    Connection, DirEntry, Error, ExecHandle, ExecRequest, FileReader, NetworkDenial, NetworkEvent, NetworkPolicy,
    NetworkUsage, NewEntry, Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec,
    WatchEvents, WatchOptions, WorkspaceChanges,
};
use cofferdam_guest::network::Network;

use crate::NAME;
use crate::file_memory::Follower;
use crate::freeze::Freezer;
use crate::overlay;
use crate::pending::{Origin, PendingSandbox, has_host_files, max_archive_bytes};
use crate::snapshot::{AsyncSnapshotWriter, ContainerSnapshot};
use crate::state::BackendState;

/// A container sandbox. Dropping it ends all its processes.
pub(crate) struct ContainerSandbox {
    spec: Spec,
    posture: Posture,
    inner: PendingSandbox,
    stored: Follower,
    freezer: Freezer,
    closed: AtomicBool,
}

impl ContainerSandbox {
    /// Creates the sandbox from a verified pending one.
    pub(crate) fn new(inner: PendingSandbox, spec: Spec, posture: Posture) -> Self {
        let stored = Follower::start(&inner.container, &inner.guest, spec.limits());
        let freezer = Freezer::new(inner.guest.clone());
        Self { spec, posture, inner, stored, freezer, closed: AtomicBool::new(false) }
    }

    /// Creates a sandbox and verifies its posture. Closes it if the posture falls short of the spec.
    pub(crate) async fn create(state: &Arc<BackendState>, spec: Spec) -> Result<Self> {
        Self::create_from(state, spec, None).await
    }

    async fn create_from(state: &Arc<BackendState>, spec: Spec, origin: Option<Origin>) -> Result<Self> {
        let pending = PendingSandbox::create(state, &spec, origin).await?;
        let posture = pending.verify_posture(&spec).await?;
        Ok(Self::new(pending, spec, posture))
    }

    /// Creates a sandbox with the files of a snapshot.
    pub(crate) async fn restore(state: &Arc<BackendState>, spec: Spec, snapshot: &ContainerSnapshot) -> Result<Self> {
        if has_host_files(&spec) {
            return Err(Error::invalid("restore", "a snapshot cannot be restored to a host directory or other mounts")
                .with_remedy("restore it with a private workspace"));
        }
        let created = Self::create(state, spec).await?;
        created.stored.wake();
        if let Err(error) = created.inner.guest.import(&mut snapshot.reader()).await {
            return Err(error.with_failed_close(created.close().await));
        }
        Ok(created)
    }

    fn open(&self, operation: &'static str) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(operation)) } else { Ok(()) }
    }

    async fn take_snapshot(&self, operation: &'static str) -> Result<ContainerSnapshot> {
        self.open(operation)?;
        if has_host_files(&self.spec) {
            return Err(Error::unsupported(operation, "the contents of mounts and of a host directory are not copied")
                .with_remedy("use a private workspace"));
        }
        let export = async {
            let mut writer = AsyncSnapshotWriter::new(max_archive_bytes(self.spec.limits(), self.spec.workspace()))?;
            self.inner.guest.export(&mut writer).await?;
            writer.finish().await
        };
        Ok(self.freezer.running(operation).await?.frozen(export).await?.with_tenant(self.spec.tenant().clone()))
    }
}

impl fmt::Debug for ContainerSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSandbox").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sandbox for ContainerSandbox {
    fn id(&self) -> &SandboxId {
        &self.inner.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    fn network_denials(&self) -> Vec<NetworkDenial> {
        self.inner.network.as_ref().map(Network::denials).unwrap_or_default()
    }

    fn network_usage(&self) -> Option<NetworkUsage> {
        self.inner.network.as_ref().map(Network::usage)
    }

    fn network_events(&self) -> Option<tokio::sync::broadcast::Receiver<NetworkEvent>> {
        self.inner.network.as_ref().map(Network::events)
    }

    fn network_policy(&self) -> NetworkPolicy {
        self.inner.network.as_ref().map_or_else(|| self.spec.network().clone(), Network::policy)
    }

    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        self.open("set_network")?;
        match &self.inner.network {
            Some(network) => network.replace(&policy, NAME),
            None => Err(Error::unsupported("set_network", "the sandbox was created without a network policy")
                .with_remedy("create another sandbox with a policy")),
        }
    }

    async fn connect(&self, port: u16) -> Result<Connection> {
        self.open("connect")?;
        self.inner.guest.connect_to(port).await
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        self.open("start")?;
        self.stored.wake();
        self.inner.guest.start(&request, self.spec.limits()).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.open("read_file")?;
        self.inner.guest.read_file(path).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.open("write_file")?;
        self.spec.workspace().check_change("write_file")?;
        self.stored.wake();
        self.inner.guest.write_file(path, contents).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        self.open("put")?;
        self.spec.workspace().check_change("put")?;
        self.stored.wake();
        self.inner.guest.put(path, entry).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.open("list_dir")?;
        self.inner.guest.list_dir(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.open("rename")?;
        self.spec.workspace().check_change("rename")?;
        self.inner.guest.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.open("remove")?;
        self.spec.workspace().check_change("remove")?;
        self.inner.guest.remove(path).await
    }

    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        self.open("watch")?;
        self.inner.guest.watch(path, options).await
    }

    async fn changes(&self) -> Result<WorkspaceChanges> {
        match &self.inner.layer {
            Some(layer) => layer.capture(self.spec.limits().disk).await,
            None if !overlay::is_permitted() => {
                Err(Error::unsupported("changes", "without root, containers have no copy-on-write workspaces"))
            }
            None => Err(Error::invalid("changes", "the workspace is not copy-on-write")
                .with_remedy("create the sandbox with a copy-on-write workspace")),
        }
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.take_snapshot("snapshot").await.map(Snapshot::from)
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let spec = self.spec.to_builder().network(self.network_policy()).build()?;
        let state = &self.inner.container.state;
        match &self.inner.layer {
            Some(layer) if spec.mounts().is_empty() => {
                self.open("fork")?;
                let origin = Origin { layer: Arc::clone(layer), source: self.freezer.clone() };
                Ok(Arc::new(Self::create_from(state, spec, Some(origin)).await?))
            }
            _ => {
                let snapshot = self.take_snapshot("fork").await?;
                Ok(Arc::new(Self::restore(state, spec, &snapshot).await?))
            }
        }
    }

    async fn pause(&self) -> Result<()> {
        let mut paused = self.freezer.paused.lock().await;
        self.open("pause")?;
        if paused.is_some() {
            return Ok(());
        }
        // The usage does not change during the pause.
        let usage = self.inner.guest.usage(self.spec.limits()).await?;
        self.inner.guest.set_paused(true);
        if let Err(error) = self.inner.container.pause().await {
            self.inner.guest.set_paused(false);
            return Err(error);
        }
        *paused = Some(usage);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        let mut paused = self.freezer.paused.lock().await;
        self.open("resume")?;
        if paused.is_none() {
            return Ok(());
        }
        self.inner.container.resume().await?;
        self.inner.guest.set_paused(false);
        *paused = None;
        Ok(())
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.open("usage")?;
        let paused = self.freezer.paused.lock().await;
        match *paused {
            Some(usage) => Ok(usage),
            None => self.inner.guest.usage(self.spec.limits()).await,
        }
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        self.inner.close().await
    }
}

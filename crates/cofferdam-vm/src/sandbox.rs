//! A live VM as a sandbox of the contract.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{
    Connection, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, NetworkDenial, NetworkEvent,
    NetworkPolicy, NetworkUsage, NewEntry, Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot,
    Spec, WatchEvents, WatchOptions,
};
use cofferdam_guest::Record;
use cofferdam_guest::network::Network;
use tokio::sync::Mutex;

use crate::NAME;
use crate::create::PendingSandbox;
use crate::error::VmError;
use crate::snapshot::VmSnapshot;
use crate::state::BackendState;
use crate::task::detached;

/// Time for the guest connection to notice that its VM is gone.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

/// A sandbox that is a VM. Dropping it kills everything in it.
pub(crate) struct VmSandbox {
    spec: Spec,
    posture: Posture,
    shared: Arc<Shared>,
}

/// The state that detached operations share.
struct Shared {
    inner: PendingSandbox,
    paused: Mutex<Option<Pause>>,
    closed: AtomicBool,
}

/// The state of a paused sandbox.
struct Pause {
    /// Its usage when it was paused.
    usage: SandboxUsage,
    /// Its guest's record, if the guest could be quiesced; it cannot be during a file transfer.
    record: Option<Record>,
}

impl VmSandbox {
    /// Creates and measures a sandbox. Closes it if it falls short of the spec.
    pub(crate) async fn create(backend: &Arc<BackendState>, spec: Spec) -> Result<Self> {
        let inner = PendingSandbox::create(backend, &spec).await?;
        Self::of(inner, spec).await
    }

    /// Restores a snapshot, and measures it again.
    pub(crate) async fn restore(backend: &Arc<BackendState>, spec: Spec, snapshot: &VmSnapshot) -> Result<Self> {
        let inner = PendingSandbox::restore(backend, &spec, snapshot).await?;
        Self::of(inner, spec).await
    }

    /// Takes the handles of the execs that were running in the snapshot.
    pub(crate) fn attach(&self) -> Vec<ExecHandle> {
        let guest = &self.shared.inner.guest;
        guest.reattached().into_iter().filter_map(|exec| guest.attach(exec)).collect()
    }

    /// Verifies the posture of a created sandbox against its spec.
    pub(crate) async fn of(inner: PendingSandbox, spec: Spec) -> Result<Self> {
        let posture = inner.verify_posture(&spec).await?;
        let shared = Shared { inner, paused: Mutex::new(None), closed: AtomicBool::new(false) };
        Ok(Self { spec, posture, shared: Arc::new(shared) })
    }

    fn open(&self, operation: &'static str) -> Result<&PendingSandbox> {
        self.shared.open(operation)
    }

    pub(crate) async fn take_snapshot(&self, operation: &'static str) -> Result<VmSnapshot> {
        let shared = Arc::clone(&self.shared);
        let taken = detached(operation, async move { shared.snapshot(operation).await }).await?;
        Ok(taken.of_tenant(self.spec.tenant()))
    }
}

impl Shared {
    fn open(&self, operation: &'static str) -> Result<&PendingSandbox> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(operation)) } else { Ok(&self.inner) }
    }

    /// Quiesces the guest between two messages, and pauses the VM.
    async fn stop(&self) -> Result<Record> {
        let record = self.inner.guest.quiesce().await?.into_record();
        match self.inner.vm.pause().await {
            Ok(()) => Ok(record),
            Err(error) => {
                // If the VM is dead, so is its guest. The first error is reported.
                let _ = self.or_close(self.inner.guest.release().await).await;
                Err(error.into_error("pause"))
            }
        }
    }

    async fn continue_guest(&self) -> Result<()> {
        let resumed = match self.inner.vm.resume().await {
            Ok(()) => self.inner.guest.release().await,
            Err(error) => Err(error.into_error("resume")),
        };
        self.or_close(resumed).await
    }

    /// Closes a sandbox that could not be resumed: no limit is enforced in a stopped VM, and its execs would never
    /// complete.
    async fn or_close(&self, resumed: Result<()>) -> Result<()> {
        if resumed.is_err() {
            // The VM first: then the guest's error is the end of the VM, rather than a close by its owner.
            let _ = self.inner.vm.kill().await;
            let _ = tokio::time::timeout(NOTICE_TIMEOUT, self.inner.guest.closed()).await;
            let _ = self.inner.close().await;
        }
        resumed
    }

    async fn pause(&self) -> Result<()> {
        let mut paused = self.paused.lock().await;
        self.open("pause")?;
        if paused.is_some() {
            return Ok(());
        }
        // Its usage does not change until it is resumed.
        let usage = self.inner.guest.usage(&self.inner.limits).await?;
        let record = match self.stop().await {
            Ok(record) => Some(record),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.inner.guest.set_paused(true);
                if let Err(error) = self.inner.vm.pause().await {
                    self.inner.guest.set_paused(false);
                    return Err(error.into_error("pause"));
                }
                None
            }
            Err(error) => return Err(error),
        };
        *paused = Some(Pause { usage, record });
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        let mut paused = self.paused.lock().await;
        self.open("resume")?;
        // It is resumed or closed, so it is not paused any more.
        match paused.take() {
            None => Ok(()),
            Some(Pause { record: Some(_), .. }) => self.continue_guest().await,
            Some(Pause { record: None, .. }) => {
                let resumed = self.inner.vm.resume().await.map_err(|error| error.into_error("resume"));
                self.inner.guest.set_paused(false);
                self.or_close(resumed).await
            }
        }
    }

    async fn snapshot(&self, operation: &'static str) -> Result<VmSnapshot> {
        let paused = self.paused.lock().await;
        self.open(operation)?;
        let failed = |error: VmError| error.into_error(operation);
        match &*paused {
            Some(Pause { record: Some(record), .. }) => self.inner.capture(record.clone()).await.map_err(failed),
            Some(Pause { record: None, .. }) => {
                Err(Error::new(ErrorKind::Conflict, operation, "the sandbox was paused during a file transfer")
                    .with_remedy("resume it, and wait for the transfer"))
            }
            None => {
                let record = self.stop().await?;
                let captured = self.inner.capture(record).await.map_err(failed);
                // The VM resumes, whether the capture succeeded or not.
                let resumed = self.continue_guest().await;
                let captured = captured?;
                resumed.map(|()| captured)
            }
        }
    }
}

impl fmt::Debug for VmSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmSandbox").field("id", &self.shared.inner.id).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sandbox for VmSandbox {
    fn id(&self) -> &SandboxId {
        &self.shared.inner.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    fn network_denials(&self) -> Vec<NetworkDenial> {
        self.shared.inner.network.as_ref().map(Network::denials).unwrap_or_default()
    }

    fn network_usage(&self) -> Option<NetworkUsage> {
        self.shared.inner.network.as_ref().map(Network::usage)
    }

    fn network_events(&self) -> Option<tokio::sync::broadcast::Receiver<NetworkEvent>> {
        self.shared.inner.network.as_ref().map(Network::events)
    }

    fn network_policy(&self) -> NetworkPolicy {
        self.shared.inner.network.as_ref().map_or_else(|| self.spec.network().clone(), Network::policy)
    }

    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        self.open("set_network")?;
        match &self.shared.inner.network {
            Some(network) => network.replace(&policy, NAME),
            None => Err(Error::unsupported("set_network", "the sandbox was created without a network policy")
                .with_remedy("create another sandbox with a policy")),
        }
    }

    async fn connect(&self, port: u16) -> Result<Connection> {
        self.open("connect")?.guest.connect_to(port).await
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        self.open("start")?.guest.start(&request, self.spec.limits()).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.open("read_file")?.guest.read_file(path).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.open("write_file")?.guest.write_file(path, contents).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        self.open("put")?.guest.put(path, entry).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.open("list_dir")?.guest.list_dir(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.open("rename")?.guest.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.open("remove")?.guest.remove(path).await
    }

    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        self.open("watch")?.guest.watch(path, options).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.take_snapshot("snapshot").await.map(Snapshot::from)
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let snapshot = self.take_snapshot("fork").await?;
        let spec = self.spec.to_builder().network(self.network_policy()).build()?;
        Ok(Arc::new(Self::restore(&self.shared.inner.backend, spec, &snapshot).await?))
    }

    async fn pause(&self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        detached("pause", async move { shared.pause().await }).await
    }

    async fn resume(&self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        detached("resume", async move { shared.resume().await }).await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        let inner = self.open("usage")?;
        let paused = self.shared.paused.lock().await;
        match &*paused {
            Some(Pause { usage, .. }) => Ok(*usage),
            None => inner.guest.usage(&inner.limits).await,
        }
    }

    async fn close(&self) -> Result<()> {
        if self.shared.inner.has_writable_mounts() && self.shared.paused.lock().await.is_some() {
            // A stopped VM cannot write what its mounts have cached. If it cannot resume, the close reports that.
            let _ = self.resume().await;
        }
        self.shared.closed.store(true, Ordering::Release);
        self.shared.inner.close().await
    }
}

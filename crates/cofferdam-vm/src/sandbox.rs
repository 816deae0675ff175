//! One live machine, as the contract sees it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, Posture, Result, Sandbox, SandboxId, SandboxPath,
    SandboxUsage, Snapshot, Spec,
};
use cofferdam_guest::Record;
use tokio::sync::Mutex;

use crate::error::VmError;
use crate::make::{Host, Raw, apart};
use crate::snapshot::VmSnapshot;

/// Time that a guest has to notice that its machine is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(5);

/// A sandbox that is a machine. Dropping it ends everything in it.
pub(crate) struct VmSandbox {
    spec: Spec,
    posture: Posture,
    shared: Arc<Shared>,
}

/// What goes on with work that nobody waits for any more.
struct Shared {
    raw: Raw,
    paused: Mutex<Option<Pause>>,
    closed: AtomicBool,
}

/// That it is paused.
struct Pause {
    /// What it used when it was.
    usage: SandboxUsage,
    /// Of its guest, where that could be held: it cannot while a file is on its way.
    record: Option<Record>,
}

impl VmSandbox {
    /// Has one made and measured. Whatever falls short of the spec ends it again.
    pub(crate) async fn make(host: &Arc<Host>, spec: Spec) -> Result<Self> {
        let raw = Raw::make(host, &spec).await?;
        Self::of(raw, spec).await
    }

    /// Has one go on from a snapshot, measured anew.
    pub(crate) async fn restore(host: &Arc<Host>, spec: Spec, snapshot: &VmSnapshot) -> Result<Self> {
        let raw = Raw::restore(host, &spec, snapshot).await?;
        Self::of(raw, spec).await
    }

    /// Takes the handles of the execs that were running in the snapshot.
    pub(crate) fn attach(&self) -> Vec<ExecHandle> {
        let guest = &self.shared.raw.guest;
        guest.adopted().into_iter().filter_map(|exec| guest.attach(exec)).collect()
    }

    /// Holds what was made against its spec.
    pub(crate) async fn of(raw: Raw, spec: Spec) -> Result<Self> {
        let posture = raw.judge(&spec).await?;
        let shared = Shared { raw, paused: Mutex::new(None), closed: AtomicBool::new(false) };
        Ok(Self { spec, posture, shared: Arc::new(shared) })
    }

    fn open(&self, operation: &'static str) -> Result<&Raw> {
        self.shared.open(operation)
    }

    pub(crate) async fn take_snapshot(&self, operation: &'static str) -> Result<VmSnapshot> {
        let shared = Arc::clone(&self.shared);
        let taken = apart(operation, async move { shared.snapshot(operation).await }).await?;
        Ok(taken.of_tenant(self.spec.tenant()))
    }
}

impl Shared {
    fn open(&self, operation: &'static str) -> Result<&Raw> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(operation)) } else { Ok(&self.raw) }
    }

    /// Stops the guest between two words, and the machine.
    async fn stop(&self) -> Result<Record> {
        let record = self.raw.guest.hold().await?.into_record();
        match self.raw.vm.pause().await {
            Ok(()) => Ok(record),
            Err(error) => {
                // If the machine is dead, so is its guest. The first error is the one to tell.
                let _ = self.or_end(self.raw.guest.release().await).await;
                Err(error.into_error("pause"))
            }
        }
    }

    async fn go_on(&self) -> Result<()> {
        let gone_on = match self.raw.vm.resume().await {
            Ok(()) => self.raw.guest.release().await,
            Err(error) => Err(error.into_error("resume")),
        };
        self.or_end(gone_on).await
    }

    /// Ends everything that did not go on: no limit holds in what stands still, and nobody would ever hear of its execs.
    async fn or_end(&self, gone_on: Result<()>) -> Result<()> {
        if gone_on.is_err() {
            // The machine first: so the guest is told why, rather than that its owner closed it.
            let _ = self.raw.vm.kill().await;
            let _ = tokio::time::timeout(NOTICE_LIMIT, self.raw.guest.closed()).await;
            let _ = self.raw.close().await;
        }
        gone_on
    }

    async fn pause(&self) -> Result<()> {
        let mut paused = self.paused.lock().await;
        self.open("pause")?;
        if paused.is_some() {
            return Ok(());
        }
        // Nothing in it changes until it goes on.
        let usage = self.raw.guest.usage(&self.raw.limits).await?;
        let record = match self.stop().await {
            Ok(record) => Some(record),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.raw.guest.set_paused(true);
                if let Err(error) = self.raw.vm.pause().await {
                    self.raw.guest.set_paused(false);
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
        // Whether it goes on or is ended, it is not paused any more.
        match paused.take() {
            None => Ok(()),
            Some(Pause { record: Some(_), .. }) => self.go_on().await,
            Some(Pause { record: None, .. }) => {
                let resumed = self.raw.vm.resume().await.map_err(|error| error.into_error("resume"));
                self.raw.guest.set_paused(false);
                self.or_end(resumed).await
            }
        }
    }

    async fn snapshot(&self, operation: &'static str) -> Result<VmSnapshot> {
        let paused = self.paused.lock().await;
        self.open(operation)?;
        let failed = |error: VmError| error.into_error(operation);
        match &*paused {
            Some(Pause { record: Some(record), .. }) => self.raw.capture(record.clone()).await.map_err(failed),
            Some(Pause { record: None, .. }) => {
                Err(Error::new(ErrorKind::Conflict, operation, "it was paused while a file was on its way")
                    .with_remedy("resume it, and wait for the file"))
            }
            None => {
                let record = self.stop().await?;
                let captured = self.raw.capture(record).await.map_err(failed);
                // Whatever became of it, the machine goes on.
                let gone_on = self.go_on().await;
                let captured = captured?;
                gone_on.map(|()| captured)
            }
        }
    }
}

impl fmt::Debug for VmSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmSandbox").field("id", &self.shared.raw.id).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sandbox for VmSandbox {
    fn id(&self) -> &SandboxId {
        &self.shared.raw.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
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

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.open("list_dir")?.guest.list_dir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.open("remove")?.guest.remove(path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.take_snapshot("snapshot").await.map(Snapshot::from)
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let snapshot = self.take_snapshot("fork").await?;
        Ok(Arc::new(Self::restore(&self.shared.raw.host, self.spec.clone(), &snapshot).await?))
    }

    async fn pause(&self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        apart("pause", async move { shared.pause().await }).await
    }

    async fn resume(&self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        apart("resume", async move { shared.resume().await }).await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        let raw = self.open("usage")?;
        let paused = self.shared.paused.lock().await;
        match &*paused {
            Some(Pause { usage, .. }) => Ok(*usage),
            None => raw.guest.usage(&raw.limits).await,
        }
    }

    async fn close(&self) -> Result<()> {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.raw.close().await
    }
}

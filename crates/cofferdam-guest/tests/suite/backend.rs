//! A backend of test enclosures, to run the conformance suite on it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use cofferdam_contract::{
    Access, Backend, Capabilities, Capability, DirEntry, Error, ExecHandle, ExecRequest, FileReader, Level,
    NetworkPolicy, NewEntry, Posture, PostureItem, PreparedSandbox, Protection, ProtectionState, Result, RootFs,
    Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec, WatchEvents, WatchOptions, Workspace,
};
use cofferdam_guest::{Evidence, Guest, Settings, usual_rules};
use tokio::sync::Mutex;

use crate::enclosure::{DISK, Enclosure, LONG, Streams};

const NAME: &str = "enclosure";

/// A backend that creates enclosures.
#[derive(Debug, Default)]
pub struct EnclosureBackend {
    created: AtomicU64,
}

struct EnclosureSandbox {
    id: SandboxId,
    spec: Spec,
    posture: Posture,
    guest: Guest,
    enclosure: Mutex<Option<Enclosure>>,
}

impl fmt::Debug for EnclosureSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnclosureSandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

fn posture(spec: &Spec, evidence: &Evidence) -> Posture {
    let measured = |protection: Protection| match protection {
        Protection::Seccomp => evidence.seccomp_filtered && evidence.calls.iter().all(|call| !call.was_let_through()),
        Protection::Landlock => evidence.landlock,
        Protection::Capabilities => evidence.capabilities[..3].iter().all(|set| *set == Some(0)),
        Protection::NoNewPrivileges => evidence.no_new_privileges,
        Protection::RootFilesystem => evidence.writes.iter().all(|trial| !trial.worked),
        Protection::User => evidence.uids == [1000; 4],
        Protection::Network => evidence.interfaces.as_ref().is_some_and(Vec::is_empty),
        Protection::Workspace => {
            let writable = spec.workspace().access() == Access::ReadWrite;
            evidence.workspace_writable == Some(writable) || evidence.workspace_writable.is_none()
        }
        Protection::PidNamespace => evidence.pid == 1,
        Protection::Memory | Protection::Processes | Protection::Cpus | Protection::CgroupNamespace => false,
        _ => true,
    };
    let limits = spec.limits();
    Posture::new(Protection::ALL.iter().map(|&protection| {
        let requested = match protection {
            Protection::Memory => limits.memory.is_some(),
            Protection::CpuTime => limits.cpu_time.is_some(),
            Protection::Cpus => limits.cpus.is_some(),
            Protection::Processes => limits.pids.is_some(),
            Protection::Disk => limits.disk.is_some(),
            _ => true,
        };
        let state = match (requested, measured(protection)) {
            (false, _) => ProtectionState::NotAsked,
            (true, true) => ProtectionState::Enforced,
            (true, false) => ProtectionState::Absent,
        };
        let mechanism = "set up by the tests".to_owned();
        PostureItem { protection, state, mechanism, probed: false, remedy: Some("use a real backend".to_owned()) }
    }))
}

impl EnclosureBackend {
    async fn create_one(&self, spec: Spec) -> Result<Arc<EnclosureSandbox>> {
        spec.validate()?;
        let Workspace::Private { access } = spec.workspace() else {
            return Err(Error::unsupported("create", "test enclosures have no host directories"));
        };
        let alone =
            matches!((spec.root(), spec.network()), (RootFs::Default, NetworkPolicy::None)) && spec.mounts().is_empty();
        if !alone || spec.attributes().keys().any(|key| key.starts_with("enclosure.")) {
            return Err(Error::unsupported("create", "test enclosures do not support this"));
        }
        let disk = spec.limits().disk.map_or(DISK, |limit| limit.as_bytes().min(DISK));
        let (enclosure, Streams { reader, writer }) = Enclosure::start(disk);
        let rules = usual_rules(*access);
        let settings = Settings { rules, limits: spec.limits().clone(), ..Settings::default() };
        let (guest, evidence) = Guest::connect(reader, writer, settings, Instant::now() + LONG).await?;
        let posture = posture(&spec, &evidence);
        posture.require(spec.allow_weaker())?;
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let id = SandboxId::new(format!("{NAME}-{number}"));
        let enclosure = Mutex::new(Some(enclosure));
        Ok(Arc::new(EnclosureSandbox { id, spec, posture, guest, enclosure }))
    }
}

#[async_trait]
impl Backend for EnclosureBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Container
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::{Files, MultipleExecs, StreamingStdin, Terminal, UnixPrograms, Watch};
        [Files, MultipleExecs, StreamingStdin, Terminal, UnixPrograms, Watch, Capability::Snapshot].into()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(self.create_one(spec).await?)
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let Some(archive) = snapshot.payload::<Vec<u8>>().filter(|_| snapshot.backend() == NAME) else {
            return Err(Error::invalid("restore", "not a snapshot of this backend"));
        };
        spec.check_tenant(snapshot.tenant())?;
        let sandbox = self.create_one(spec).await?;
        sandbox.guest.import(&mut &archive[..]).await?;
        Ok(sandbox)
    }

    async fn prepare(&self, _spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(Error::unsupported("warm", "test enclosures are not pre-created"))
    }
}

#[async_trait]
impl Sandbox for EnclosureSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        self.guest.start(&request, self.spec.limits()).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.guest.read_file(path).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.guest.write_file(path, contents).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        self.guest.put(path, entry).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.guest.list_dir(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.guest.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.guest.remove(path).await
    }

    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        self.guest.watch(path, options).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        let mut archive = Vec::new();
        self.guest.export(&mut archive).await?;
        Ok(Snapshot::new(NAME, archive).with_tenant(self.spec.tenant().clone()))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("fork", "test enclosures cannot be copied"))
    }

    async fn pause(&self) -> Result<()> {
        Err(Error::unsupported("pause", "test enclosures cannot be paused"))
    }

    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported("resume", "test enclosures cannot be paused"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.guest.usage(self.spec.limits()).await
    }

    async fn close(&self) -> Result<()> {
        self.guest.close().await;
        if let Some(enclosure) = self.enclosure.lock().await.take() {
            enclosure.ended().await;
        }
        Ok(())
    }
}

//! Creation of sandboxes: starts a VM, connects to its agent, and measures everything.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cofferdam_contract::{Access, ByteSize, Error, Limits, Posture, Result, RootFs, SandboxId, Spec};
use cofferdam_guest::{Ending, Evidence, Guest, Meter, Reason, Record, Renewal, Settings};
use cofferdam_image::{Cache, Image, ImageError, Images, Progress, RootSource, Source, ext4};
use cofferdam_util::private;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use crate::budget::{Budget, Lease};
use crate::choice::Chooser;
use crate::config::{MakePolicy, RootChoice, VmConfig};
use crate::error::{VmError, io};
use crate::plan::{self, PORT, Plan, USER};
use crate::posture::{Measured, posture};
use crate::ready::{MAX_TEMPLATES, TEMPLATE_IDLE_TIMEOUT, Templates};
use crate::snapshot::{SnapshotManifest, VmSnapshot};
use crate::sparse;
use crate::task::{blocking, detached};
use crate::vmm::{Contents, Disk, Hardware, MAX_DEVICES, Machine, MachineState, Started, Vm, Vmm};

const ROOT: &str = "cofferdam-root";
const WORKSPACE: &str = "cofferdam-work";
const RESTORE: &str = "restore";
/// Time for a VM to end after its port was closed, before it counts as still running.
const EXIT_TIMEOUT: Duration = Duration::from_millis(1500);

/// A callback for the steps of building an image.
pub type MakeProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// The state that all sandboxes of a backend share.
pub(crate) struct Host {
    pub config: VmConfig,
    vmm: Chooser,
    images: Images,
    /// The default image, once it was found or built.
    image: OnceCell<Image>,
    boots: Semaphore,
    /// The memory that is left for snapshots.
    budget: Budget,
    /// Template snapshots for prepared VMs.
    pub templates: Templates,
    progress: MakeProgress,
    /// The boot ID of this host's kernel.
    boot: String,
}

impl Host {
    pub(crate) fn new(config: VmConfig, progress: MakeProgress) -> Result<Arc<Self>> {
        config.check()?;
        let vmm = Chooser::new(&config).map_err(|error| error.into_error("configure"))?;
        let images = Images::new(&config.images, Cache::new(&config.packages));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let boots = Semaphore::new(config.boots);
        let (budget, templates) = (Budget::new(config.snapshots), Templates::new(MAX_TEMPLATES, TEMPLATE_IDLE_TIMEOUT));
        let image = OnceCell::new();
        Ok(Arc::new(Self { config, vmm, images, image, boots, budget, templates, progress, boot }))
    }

    pub(crate) fn vmm(&self) -> &dyn Vmm {
        &self.vmm
    }

    pub(crate) async fn image_of(&self, spec: &Spec) -> Result<Image, VmError> {
        match spec.root() {
            RootFs::Directory { path } => {
                let root = RootSource::Directory(path.clone());
                let recorded = spec.directories().get(path).map(|id| (id.device, id.inode));
                self.found(Source { root, recorded, ..self.config.source.clone() }).await
            }
            RootFs::Image { reference } => self.named(reference).await,
            RootFs::Default => self.image.get_or_try_init(|| self.default_image()).await.cloned(),
        }
    }

    /// Returns the default image, for a spec that names none.
    async fn default_image(&self) -> Result<Image, VmError> {
        let source = || self.found(self.config.source.clone());
        match &self.config.root {
            RootChoice::Source => source().await,
            RootChoice::Made(name) => self.named(name).await,
            RootChoice::MadeOrSource(name) => match self.named(name).await {
                Err(VmError::Image(ImageError::NoSuchImage { .. } | ImageError::OldImage { .. })) => source().await,
                found => found,
            },
        }
    }

    async fn named(&self, name: &str) -> Result<Image, VmError> {
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || Ok(images.named(&name)?)).await
    }

    async fn named_for_restore(&self, name: &str) -> Result<Image, VmError> {
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || Ok(images.named_for_restore(&name)?)).await
    }

    /// Reserves memory for a state that is still being written: nothing so far. It counts as memory for snapshots.
    pub(crate) fn open_lease(&self) -> Result<Lease, VmError> {
        self.budget.take(0)
    }

    /// Finds the image with this key, and the way in which a spec names it: by its name if it has one, else as the
    /// default image.
    pub(crate) async fn image_with(&self, key: &str) -> Result<(RootFs, Image), VmError> {
        let (images, wanted) = (self.images.clone(), key.to_owned());
        let listed = blocking(move || Ok(images.inventory().named.into_iter().find(|listed| listed.key == wanted)));
        if let Some(listed) = listed.await? {
            let image = self.named_for_restore(&listed.name).await?;
            if image.key == key {
                return Ok((RootFs::Image { reference: listed.name }, image));
            }
        }
        // An unnamed image: built for a root of a single run, or its name was given to a newer one.
        let (images, wanted) = (self.images.clone(), key.to_owned());
        if let Some(image) = blocking(move || Ok(images.kept(&wanted)?)).await? {
            return Ok((RootFs::Default, image));
        }
        // None is built for this: an image that is built now hardly equals the one from then.
        let (images, source) = (self.images.clone(), self.config.source.clone());
        let default = blocking(move || Ok(images.find(&source, &mut |_| ())?)).await;
        match default {
            Ok(image) if image.key == key => Ok((RootFs::Default, image)),
            Ok(_) | Err(VmError::Image(ImageError::NoImage)) => Err(VmError::NoBase { key: crate::error::shown(key) }),
            Err(error) => Err(error),
        }
    }

    /// Refuses a snapshot that cannot resume here. Returns the image that it resumes with, which was looked up just
    /// once.
    pub(crate) async fn check(&self, manifest: &SnapshotManifest, spec: &Spec) -> Result<Image, VmError> {
        manifest.check_origin(&self.vmm.origin().await?)?;
        let image = match spec.root() {
            RootFs::Image { reference } => self.named_for_restore(reference).await?,
            RootFs::Default | RootFs::Directory { .. } => self.image_of(spec).await?,
        };
        if image.key == manifest.image() {
            return Ok(image);
        }
        let found = crate::error::shown(manifest.image());
        Err(VmError::Elsewhere { what: "the image", found, here: image.key })
    }

    async fn found(&self, source: Source) -> Result<Image, VmError> {
        let (images, policy, progress) = (self.images.clone(), self.config.make, Arc::clone(&self.progress));
        let mut report = move |step| progress(step);
        blocking(move || match policy {
            MakePolicy::Never => Ok(images.find(&source, &mut report)?),
            MakePolicy::Missing => Ok(images.find_or_make(&source, &mut report)?),
        })
        .await
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("config", &self.config).field("vmm", &self.vmm).finish_non_exhaustive()
    }
}

/// The disks of a sandbox.
struct Disks {
    root: Arc<File>,
    workspace: Option<Arc<File>>,
}

/// A sandbox that was created and measured. Dropping it kills its VM.
pub(crate) struct PendingSandbox {
    pub id: SandboxId,
    pub guest: Guest,
    pub vm: Arc<dyn Vm>,
    pub host: Arc<Host>,
    pub evidence: Evidence,
    plan: Plan,
    /// The accelerator, and the reason for it.
    runs: String,
    /// The key of its image.
    image: String,
    root: RootFs,
    access: Access,
    pub limits: Limits,
    /// `None` once it was closed.
    disks: Mutex<Option<Disks>>,
    /// The snapshot that it was created from, whose memory it still shares.
    from: Mutex<Option<VmSnapshot>>,
}

impl fmt::Debug for PendingSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSandbox").field("id", &self.id).field("vm", &self.vm).finish_non_exhaustive()
    }
}

impl PendingSandbox {
    /// Creates a sandbox, in a task of its own: a caller that stops waiting leaves nothing half created.
    pub(crate) async fn make(host: &Arc<Host>, spec: &Spec) -> Result<Self> {
        let plan = Plan::of(spec, &host.config)?;
        let (host, spec) = (Arc::clone(host), spec.clone());
        detached("create", async move { make(&host, &spec, plan).await }).await
    }

    /// Restores a snapshot as another VM, in a task of its own.
    pub(crate) async fn restore(host: &Arc<Host>, spec: &Spec, snapshot: &VmSnapshot) -> Result<Self> {
        let plan = Plan::of(spec, &host.config)?;
        let (host, spec, snapshot) = (Arc::clone(host), spec.clone(), snapshot.clone());
        detached(RESTORE, async move { restore(&host, &spec, plan, snapshot).await }).await
    }

    /// Takes a snapshot of the VM, which must be paused; `record` is its guest's.
    pub(crate) async fn capture(&self, record: Record) -> Result<VmSnapshot, VmError> {
        let closed = || VmError::BadSnapshot { what: "the sandbox is closed".to_owned() };
        let (root, workspace) = {
            let disks = self.disks.lock();
            let disks = disks.as_ref().ok_or_else(closed)?;
            (Arc::clone(&disks.root), disks.workspace.clone())
        };
        let directory = self.host.config.disks.clone();
        let copying = blocking(move || {
            let copy = |disk: Arc<File>| sparse::copy_disk(&disk, &directory).map_err(io("copy a disk in", &directory));
            workspace.map(copy).transpose()
        });
        // Reserved before anything is copied: concurrent snapshots share the rest.
        let mut lease = self.host.budget.take_most(self.plan.memory.as_bytes().saturating_add(MAX_DEVICES));
        let most = ByteSize::from_bytes(lease.bytes());
        let (state, disk) = tokio::join!(self.vm.snapshot(most), copying);
        let (state, disk): (MachineState, Option<File>) = (state?, disk?);
        let taken = state.allocated()?;
        lease.grow(taken)?;
        lease.shrink(taken);
        let origin = self.host.vmm.origin().await?;
        let manifest =
            SnapshotManifest::new(origin, self.image.clone(), self.plan, (self.access, self.limits.clone()), record);
        let snapshot = VmSnapshot::new(manifest, state, disk, Some((self.root.clone(), root)), lease)?;
        Ok(snapshot.measured(self.evidence.clone()))
    }

    /// Assigns it to a claim with these limits. Nothing of the VM depends on the limits that may differ.
    pub(crate) fn claimed(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Verifies its posture against a spec. Closes the sandbox on failure.
    pub(crate) async fn verify_posture(&self, spec: &Spec) -> Result<Posture> {
        let Self { evidence, plan, host, runs, .. } = self;
        let (host_boot, kept) = (&host.boot, &self.vm.kept());
        let posture = posture(&Measured { spec, evidence, user: USER, shares: plan.shares, host_boot, runs, kept });
        if let Err(error) = posture.require(spec.allow_weaker()) {
            return Err(error.with_failed_close(self.close().await));
        }
        Ok(posture)
    }

    /// Kills the VM; nothing is left when this returns.
    pub(crate) async fn close(&self) -> Result<()> {
        // The VM's contents are of no use any more: it need not shut down cleanly.
        let ((), killed) = tokio::join!(self.guest.close(), self.vm.kill());
        drop(self.disks.lock().take());
        drop(self.from.lock().take());
        killed.map_err(|error| error.into_error("close"))
    }
}

async fn make(host: &Arc<Host>, spec: &Spec, plan: Plan) -> Result<PendingSandbox> {
    let failed = |error: VmError| error.into_error("create");
    // An impossible configuration is reported before an image is looked for, or built.
    host.vmm.check().await.map_err(failed)?;
    let image = host.image_of(spec).await.map_err(failed)?;
    let directory = host.config.disks.clone();
    let workspace = match plan.shares.disk {
        Some(bytes) => Some(blocking(move || empty_disk(directory, bytes)).await.map_err(failed)?),
        None => None,
    };
    let root = File::open(&image.root).map_err(io("open", &image.root)).map_err(failed)?;
    let disks = Disks { root: Arc::new(root), workspace: workspace.map(Arc::new) };
    let machine = machine(host, &plan, &image, &disks).await?;
    let _turn = host.boots.acquire().await.map_err(|_| Error::closed("create"))?;
    let ready_by = Instant::now() + host.config.deadlines.boot;
    let Started { vm, reader, writer } = host.vmm.start(machine).await.map_err(failed)?;
    let vm: Arc<dyn Vm> = Arc::from(vm);
    let settings =
        Settings { reason: Some(reason(&vm)), meter: Some(meter(&vm)), ..Plan::settings(spec, &host.config) };
    match Guest::connect(reader, writer, settings, ready_by).await {
        Ok((guest, evidence)) => Ok(PendingSandbox {
            id: new_id(),
            guest: bind(guest, &vm),
            vm,
            host: Arc::clone(host),
            evidence,
            plan,
            runs: host.vmm.runs_with(),
            image: image.key,
            root: spec.root().clone(),
            access: spec.workspace().access(),
            limits: spec.limits().clone(),
            disks: Mutex::new(Some(disks)),
            from: Mutex::default(),
        }),
        Err(error) => Err(no_guest(&*vm, error).await),
    }
}

async fn restore(host: &Arc<Host>, spec: &Spec, plan: Plan, snapshot: VmSnapshot) -> Result<PendingSandbox> {
    let failed = |error: VmError| error.into_error(RESTORE);
    let manifest = snapshot.manifest();
    manifest.check_spec(&plan, spec).map_err(failed)?;
    manifest.check_origin(&host.vmm.origin().await.map_err(failed)?).map_err(failed)?;
    let root = root_of(host, spec, &snapshot).await.map_err(failed)?;
    let (directory, from) = (host.config.disks.clone(), snapshot.clone());
    let workspace = blocking(move || {
        let copy = |disk: &File| sparse::copy_disk(disk, &directory).map_err(io("copy a disk in", &directory));
        from.disk().map(copy).transpose()
    });
    let disks = Disks { root, workspace: workspace.await.map_err(failed)?.map(Arc::new) };
    let parts = hardware(&plan, &disks).map_err(failed)?;
    let ready_by = Instant::now() + host.config.deadlines.boot;
    let Started { vm, reader, writer } = host.vmm.restore(parts, snapshot.state()).await.map_err(failed)?;
    let vm: Arc<dyn Vm> = Arc::from(vm);
    let settings =
        Settings { reason: Some(reason(&vm)), meter: Some(meter(&vm)), ..Plan::settings(spec, &host.config) };
    let id = new_id();
    let renewal = Renewal::new(id.as_str())?;
    vm.resume().await.map_err(failed)?;
    let saved = (manifest.guest().clone(), snapshot.evidence());
    match Guest::adopt(reader, writer, settings, saved, renewal, ready_by).await {
        Ok((guest, evidence)) => Ok(PendingSandbox {
            id,
            guest: bind(guest, &vm),
            vm,
            host: Arc::clone(host),
            evidence,
            plan,
            runs: host.vmm.runs_with(),
            image: manifest.image().to_owned(),
            root: spec.root().clone(),
            access: spec.workspace().access(),
            limits: spec.limits().clone(),
            disks: Mutex::new(Some(disks)),
            from: Mutex::new(Some(snapshot)),
        }),
        Err(error) => {
            vm.kill().await.map_err(failed)?;
            Err(error)
        }
    }
}

fn new_id() -> SandboxId {
    SandboxId::new(format!("cofferdam-{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..)))
}

/// Returns the root file system of a snapshot's VM: the file that it had open, or the image of that key.
async fn root_of(host: &Host, spec: &Spec, snapshot: &VmSnapshot) -> Result<Arc<File>, VmError> {
    if let Some((root, file)) = snapshot.root()
        && root == spec.root()
    {
        return Ok(Arc::clone(file));
    }
    let image = host.check(snapshot.manifest(), spec).await?;
    File::open(&image.root).map(Arc::new).map_err(io("open", &image.root))
}

fn hardware(plan: &Plan, disks: &Disks) -> Result<Hardware, VmError> {
    let copy = |file: &File| file.try_clone().map(Contents::Own).map_err(io("copy a descriptor of", "a disk"));
    // Many VMs share the root disk. Each gets its own open file description, so that no VMM moves another's file
    // position, or changes its flags.
    let root = File::open(format!("/proc/self/fd/{}", disks.root.as_raw_fd()));
    let root = Contents::Own(root.map_err(io("reopen", "the disk of a root file system"))?);
    let mut all = vec![Disk { name: ROOT, contents: root, access: Access::ReadOnly }];
    if let Some(workspace) = &disks.workspace {
        all.push(Disk { name: WORKSPACE, contents: copy(workspace)?, access: Access::ReadWrite });
    }
    Ok(Hardware { memory: plan.memory, processors: plan.processors, disks: all, port: PORT })
}

async fn machine(host: &Host, plan: &Plan, image: &Image, disks: &Disks) -> Result<Machine> {
    let failed = |error: VmError| error.into_error("create");
    let Hardware { memory, processors, disks, port } = hardware(plan, disks).map_err(failed)?;
    let (kernel, initramfs) = (image.kernel.clone(), image.initramfs.clone());
    let mut machine = Machine { kernel, initramfs, command_line: String::new(), memory, processors, disks, port };
    let vmm = host.vmm();
    vmm.settle(&machine).await.map_err(failed)?;
    let words: Vec<String> = machine.disks.iter().enumerate().map(|(at, disk)| vmm.disk_word(disk, at)).collect();
    let port = vmm.port_word(machine.port);
    machine.command_line = plan.options(&port, &words[0], words.get(1).map(String::as_str))?;
    Ok(machine)
}

/// Kills a VM whose agent did not connect, and returns the reason.
async fn no_guest(vm: &dyn Vm, error: Error) -> Error {
    let ended = tokio::time::timeout(EXIT_TIMEOUT, vm.ended()).await.ok();
    let console = vm.console();
    if let Err(error) = vm.kill().await {
        return error.into_error("create");
    }
    match ended {
        Some(ended) => VmError::NotBooted { reason: ended.why, console }.into_error("create").with_source(error),
        None if console.trim().is_empty() => error,
        None => error.with_context("console", crate::error::shown_end(&console)),
    }
}

/// Creates an unnamed disk with an empty file system.
fn empty_disk(directory: PathBuf, bytes: u64) -> Result<File, VmError> {
    private::create_directory(&directory).map_err(io("create", &directory))?;
    let file = tempfile::tempfile_in(&directory).map_err(io("create a disk in", &directory))?;
    file.set_len(bytes).map_err(io("size a disk in", &directory))?;
    ext4::make_empty(&file, plan::max_files_on_disk(bytes))?;
    Ok(file)
}

/// Kills a VM when its connection closes: without a connection, no limit of its execs is enforced.
fn bind(guest: Guest, vm: &Arc<dyn Vm>) -> Guest {
    let (closed, vm) = (guest.until_closed(), Arc::downgrade(vm));
    tokio::spawn(async move {
        closed.await;
        if let Some(vm) = vm.upgrade() {
            // An error is reported to the caller that closes the sandbox.
            let _ = vm.kill().await;
        }
    });
    guest
}

/// Returns a meter of the CPU time that the VMM has used.
fn meter(vm: &Arc<dyn Vm>) -> Meter {
    // A weak reference, as below.
    let vm: Weak<dyn Vm> = Arc::downgrade(vm);
    Meter::Around(Arc::new(move || {
        let micros = vm.upgrade().and_then(|vm| vm.cpu_micros());
        Box::pin(std::future::ready(micros))
    }))
}

/// Returns a function that finds out why a connection ended, for callers that wait for an answer.
fn reason(vm: &Arc<dyn Vm>) -> Reason {
    // A weak reference: the connection must not keep its own VM alive.
    let vm: Weak<dyn Vm> = Arc::downgrade(vm);
    Box::new(move || {
        Box::pin(async move {
            let vm = vm.upgrade()?;
            let ended = tokio::time::timeout(EXIT_TIMEOUT, vm.ended()).await.ok()?;
            let why = format!("its VM ended: {}", ended.why);
            Some(Ending { remedy: Some("create another sandbox".to_owned()), ..Ending::new(why) })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn no_machine_shares_its_position_in_the_root_disk_with_another() {
        let root = sparse::blank(4096).unwrap();
        let plan = Plan::of(&Spec::default(), &VmConfig::new("/x")).unwrap();
        let disks = Disks { root: Arc::new(root), workspace: None };
        let opened = || match hardware(&plan, &disks).unwrap().disks.remove(0).contents {
            Contents::Own(file) => file,
            Contents::Shared(path) => panic!("{}", path.display()),
        };
        let (mut one, mut other) = (opened(), opened());
        one.read_exact(&mut [0; 100]).unwrap();
        assert_eq!((one.stream_position().unwrap(), other.stream_position().unwrap()), (100, 0));
        assert_eq!((&*disks.root).stream_position().unwrap(), 0);
        assert!(std::io::Write::write_all(&mut other, b"x").is_err(), "it could be written to");
    }
}

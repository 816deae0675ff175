//! Makes sandboxes: a machine, the agent in it greeted, and everything measured.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use cofferdam_contract::{Access, ByteSize, Error, ErrorKind, Limits, Posture, Result, RootFs, SandboxId, Spec};
use cofferdam_debian::Cache;
use cofferdam_guest::{Ending, Evidence, Guest, Meter, Reason, Record, Renewal, Settings};
use tokio::sync::{OnceCell, Semaphore};

use crate::budget::{Budget, Lease};
use crate::choice::Chooser;
use crate::config::{MakePolicy, RootChoice, VmConfig};
use crate::error::{VmError, io};
use crate::image::{self, Image, Images, Progress, RootSource, Source};
use crate::plan::{self, PORT, Plan, USER};
use crate::posture::{Measured, posture};
use crate::qemu::MAX_DEVICES;
use crate::ready::Ready;
use crate::snapshot::{SnapshotManifest, VmSnapshot};
use crate::sparse;
use crate::vmm::{Contents, Disk, Hardware, Machine, MachineState, Started, Vm, Vmm};

const ROOT: &str = "cofferdam-root";
const WORKSPACE: &str = "cofferdam-work";
const RESTORE: &str = "restore";
/// Time that a machine has to be gone once its port is closed, before it counts as not ended.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// Told of the steps of making an image.
pub type MakeProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// What all sandboxes of a backend share.
pub(crate) struct Host {
    pub config: VmConfig,
    vmm: Chooser,
    images: Images,
    /// What machines start from, once it was found or made.
    image: OnceCell<Image>,
    boots: Semaphore,
    /// What snapshots may still take.
    budget: Budget,
    /// What warm machines come from.
    pub ready: Ready,
    progress: MakeProgress,
    /// This host's kernel, by its own name for itself.
    boot: String,
}

impl Host {
    pub(crate) fn new(config: VmConfig, progress: MakeProgress) -> Result<Arc<Self>> {
        config.check()?;
        let vmm = Chooser::new(&config).map_err(|error| error.into_error("configure"))?;
        let images = Images::new(&config.images, Cache::new(&config.packages));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let boots = Semaphore::new(config.boots);
        let (budget, ready) = (Budget::new(config.snapshots), Ready::new(config.ready, config.ready_idle));
        let image = OnceCell::new();
        Ok(Arc::new(Self { config, vmm, images, image, boots, budget, ready, progress, boot }))
    }

    pub(crate) fn vmm(&self) -> &dyn Vmm {
        &self.vmm
    }

    /// Makes the default image anew, where packages are newer than it.
    pub(crate) async fn make_image(&self) -> Result<Image, VmError> {
        let (source, images, progress) = (self.config.source.clone(), self.images.clone(), Arc::clone(&self.progress));
        blocking(move || images.make(&source, &mut |step| progress(step))).await
    }

    pub(crate) async fn image_of(&self, spec: &Spec) -> Result<Image, VmError> {
        match spec.root() {
            RootFs::Directory { path } => {
                let root = RootSource::Directory(path.clone());
                let recorded = spec.directories().get(path).map(|id| (id.device, id.inode));
                self.found(Source { root, recorded, ..self.config.source.clone() }).await
            }
            RootFs::Image { reference } => self.named(reference).await,
            RootFs::Default => self.image.get_or_try_init(|| self.usual()).await.cloned(),
        }
    }

    /// What machines start from whose spec names nothing.
    async fn usual(&self) -> Result<Image, VmError> {
        let source = || self.found(self.config.source.clone());
        match &self.config.root {
            RootChoice::Source => source().await,
            RootChoice::Made(name) => self.named(name).await,
            RootChoice::MadeOrSource(name) => match self.named(name).await {
                Err(VmError::NoSuchImage { .. } | VmError::OldImage { .. }) => source().await,
                found => found,
            },
        }
    }

    async fn named(&self, name: &str) -> Result<Image, VmError> {
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || images.named(&name)).await
    }

    async fn named_for_restore(&self, name: &str) -> Result<Image, VmError> {
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || images.named_for_restore(&name)).await
    }

    /// What a state takes of the memory that snapshots may take.
    pub(crate) fn lease(&self, state: &MachineState) -> Result<Lease, VmError> {
        self.budget.take(state.allocated()?)
    }

    /// What a state takes that is not there yet: nothing so far.
    pub(crate) fn open_lease(&self) -> Result<Lease, VmError> {
        self.budget.take(0)
    }

    /// The image with this key, and how a spec names it: one that has a name, or else is kept, as if it were what machines start
    /// from where none is named.
    pub(crate) async fn image_with(&self, key: &str) -> Result<(RootFs, Image), VmError> {
        let (images, wanted) = (self.images.clone(), key.to_owned());
        let listed = blocking(move || Ok(images.inventory().named.into_iter().find(|listed| listed.key == wanted)));
        if let Some(listed) = listed.await? {
            let image = self.named_for_restore(&listed.name).await?;
            if image.key == key {
                return Ok((RootFs::Image { reference: listed.name }, image));
            }
        }
        // One that was made for a root of a single run, or lost its name to a newer one.
        let (images, wanted) = (self.images.clone(), key.to_owned());
        if let Some(image) = blocking(move || images.kept(&wanted)).await? {
            return Ok((RootFs::Default, image));
        }
        // None is made for this: what is made now is hardly what was made then.
        let (images, source) = (self.images.clone(), self.config.source.clone());
        let usual = blocking(move || images.find(&source, MakePolicy::Never, &mut |_| ())).await;
        match usual {
            Ok(image) if image.key == key => Ok((RootFs::Default, image)),
            Ok(_) | Err(VmError::NoImage) => Err(VmError::NoBase { key: crate::error::shown(key) }),
            Err(error) => Err(error),
        }
    }

    /// Refuses a snapshot that cannot go on here; gives the image that it goes on with, which was looked up just once.
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
        blocking(move || images.find(&source, policy, &mut |step| progress(step))).await
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("config", &self.config).field("vmm", &self.vmm).finish_non_exhaustive()
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VmError> + Send + 'static,
) -> Result<T, VmError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(VmError::BadSource { what: "the making was interrupted".to_owned() }))
}

/// The disks of a sandbox.
struct Disks {
    root: Arc<File>,
    workspace: Option<Arc<File>>,
}

/// A sandbox that was measured. Dropping it ends it.
pub(crate) struct Raw {
    pub id: SandboxId,
    pub guest: Guest,
    pub vm: Arc<dyn Vm>,
    pub host: Arc<Host>,
    pub evidence: Evidence,
    plan: Plan,
    /// What runs it, and why.
    runs: String,
    /// The key of its image.
    image: String,
    root: RootFs,
    access: Access,
    pub limits: Limits,
    /// `None` once it was closed.
    disks: Mutex<Option<Disks>>,
    /// What it came from, whose memory it still shares.
    from: Mutex<Option<VmSnapshot>>,
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").field("id", &self.id).field("vm", &self.vm).finish_non_exhaustive()
    }
}

impl Raw {
    /// Has one made, in a task of its own: whoever goes away meanwhile leaves nothing half made.
    pub(crate) async fn make(host: &Arc<Host>, spec: &Spec) -> Result<Self> {
        let plan = Plan::of(spec, &host.config)?;
        let (host, spec) = (Arc::clone(host), spec.clone());
        apart("create", async move { make(&host, &spec, plan).await }).await
    }

    /// Has one go on where a snapshot was taken, as another machine, in a task of its own.
    pub(crate) async fn restore(host: &Arc<Host>, spec: &Spec, snapshot: &VmSnapshot) -> Result<Self> {
        let plan = Plan::of(spec, &host.config)?;
        let (host, spec, snapshot) = (Arc::clone(host), spec.clone(), snapshot.clone());
        apart(RESTORE, async move { restore(&host, &spec, plan, snapshot).await }).await
    }

    /// Writes it down, which must stand still; `record` is its guest's.
    pub(crate) async fn capture(&self, record: Record) -> Result<VmSnapshot, VmError> {
        let closed = || VmError::BadSnapshot { what: "the sandbox is closed".to_owned() };
        let (root, workspace) = {
            let disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
            let disks = disks.as_ref().ok_or_else(closed)?;
            (Arc::clone(&disks.root), disks.workspace.clone())
        };
        let directory = self.host.config.disks.clone();
        let copying = blocking(move || {
            let copy = |disk: Arc<File>| sparse::copy_disk(&disk, &directory).map_err(io("copy a disk in", &directory));
            workspace.map(copy).transpose()
        });
        // Taken before anything is copied: whoever copies at the same time has the rest.
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

    /// From here on it is somebody's, with these limits; nothing of the machine was built from what differs in them.
    pub(crate) fn claimed(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Holds it against a spec: the posture, or an error and nothing left.
    pub(crate) async fn judge(&self, spec: &Spec) -> Result<Posture> {
        let Self { evidence, plan, host, runs, .. } = self;
        let (host_boot, kept) = (&host.boot, &self.vm.kept());
        let posture = posture(&Measured { spec, evidence, user: USER, shares: plan.shares, host_boot, runs, kept });
        if let Err(error) = posture.require(spec.allow_weaker()) {
            return Err(error.with_failed_close(self.close().await));
        }
        Ok(posture)
    }

    /// Ends it; nothing is left when this returns.
    pub(crate) async fn close(&self) -> Result<()> {
        // What is in the machine is of no use to anybody any more: it need not end in peace.
        let ((), killed) = tokio::join!(self.guest.close(), self.vm.kill());
        drop(self.disks.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.from.lock().unwrap_or_else(PoisonError::into_inner).take());
        killed.map_err(|error| error.into_error("close"))
    }
}

/// Does some work in a task of its own, which goes on when whoever waits for it goes away.
pub(crate) async fn apart<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let interrupted = |_| Err(Error::new(ErrorKind::Internal, operation, "it was interrupted"));
    tokio::spawn(work).await.unwrap_or_else(interrupted)
}

async fn make(host: &Arc<Host>, spec: &Spec, plan: Plan) -> Result<Raw> {
    let failed = |error: VmError| error.into_error("create");
    // What is asked for and not to be had is told before an image is looked for, or made.
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
        Ok((guest, evidence)) => Ok(Raw {
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

async fn restore(host: &Arc<Host>, spec: &Spec, plan: Plan, snapshot: VmSnapshot) -> Result<Raw> {
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
    let held = (manifest.guest().clone(), snapshot.evidence());
    match Guest::adopt(reader, writer, settings, held, renewal, ready_by).await {
        Ok((guest, evidence)) => Ok(Raw {
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

/// The root file system that a snapshot's machine had: what it had open itself, or the image of that key.
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
    // Of a disk that many machines have, each has a description of its own: no monitor moves another's position in it, or
    // changes its flags.
    let root = File::open(format!("/proc/self/fd/{}", disks.root.as_raw_fd()));
    let root = Contents::Own(root.map_err(io("open again", "the disk of a root file system"))?);
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

/// The agent did not come up. Ends the machine, and says why.
async fn no_guest(vm: &dyn Vm, error: Error) -> Error {
    let ended = tokio::time::timeout(END_LIMIT, vm.ended()).await.ok();
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

/// A disk without a name, with an empty file system on it.
fn empty_disk(directory: PathBuf, bytes: u64) -> Result<File, VmError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(io("make", &directory))?;
    let file = tempfile::tempfile_in(&directory).map_err(io("make a disk in", &directory))?;
    file.set_len(bytes).map_err(io("size a disk in", &directory))?;
    image::ext4::make_empty(&file, plan::most_files_on_disk(bytes))?;
    Ok(file)
}

/// Has a machine ended with its connection: nobody keeps the limits of what computes on in it.
fn bind(guest: Guest, vm: &Arc<dyn Vm>) -> Guest {
    let (closed, vm) = (guest.until_closed(), Arc::downgrade(vm));
    tokio::spawn(async move {
        closed.await;
        if let Some(vm) = vm.upgrade() {
            // Whoever closes the sandbox is told what cannot be ended.
            let _ = vm.kill().await;
        }
    });
    guest
}

/// Reads what a machine's monitor has used.
fn meter(vm: &Arc<dyn Vm>) -> Meter {
    // Held weakly, as below.
    let vm: Weak<dyn Vm> = Arc::downgrade(vm);
    Meter::Around(Arc::new(move || {
        let micros = vm.upgrade().and_then(|vm| vm.cpu_micros());
        Box::pin(std::future::ready(micros))
    }))
}

/// Finds out why a connection ended, for those who waited for an answer.
fn reason(vm: &Arc<dyn Vm>) -> Reason {
    // Held weakly: the connection must not keep its own machine.
    let vm: Weak<dyn Vm> = Arc::downgrade(vm);
    Box::new(move || {
        Box::pin(async move {
            let vm = vm.upgrade()?;
            let ended = tokio::time::timeout(END_LIMIT, vm.ended()).await.ok()?;
            let why = format!("its machine ended: {}", ended.why);
            Some(Ending { remedy: Some("make another sandbox".to_owned()), ..Ending::new(why) })
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

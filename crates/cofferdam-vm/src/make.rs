//! Makes sandboxes: a machine, the agent in it greeted, and everything measured.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cofferdam_contract::{Access, Error, ErrorKind, Posture, Result, RootFs, SandboxId, Spec};
use cofferdam_debian::Cache;
use cofferdam_guest::{Ending, Evidence, Guest, Reason, Settings};
use tokio::sync::{OnceCell, Semaphore};

use crate::choice::Chooser;
use crate::config::{RootChoice, VmConfig};
use crate::error::{VmError, io};
use crate::image::{self, Image, Images, Progress, RootSource, Source};
use crate::plan::{self, PORT, Plan, USER};
use crate::posture::{Measured, posture};
use crate::vmm::{Contents, Disk, Machine, Started, Vm, Vmm};

const ROOT: &str = "cofferdam-root";
const WORKSPACE: &str = "cofferdam-work";
/// Time that a machine has to be gone once its port is closed, before it counts as not ended.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// Told of the steps of making an image.
pub type MakeProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// What all sandboxes of a backend share.
pub(crate) struct Host {
    pub config: VmConfig,
    vmm: Box<dyn Vmm>,
    images: Images,
    /// What machines start from, once it was found or made.
    image: OnceCell<Image>,
    boots: Semaphore,
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
        Ok(Arc::new(Self { config, vmm: Box::new(vmm), images, image: OnceCell::new(), boots, progress, boot }))
    }

    pub(crate) fn vmm(&self) -> &dyn Vmm {
        &*self.vmm
    }

    /// Makes the default image anew, where packages are newer than it.
    pub(crate) async fn make_image(&self) -> Result<Image, VmError> {
        let (source, images, progress) = (self.config.source.clone(), self.images.clone(), Arc::clone(&self.progress));
        blocking(move || images.make(&source, &mut |step| progress(step))).await
    }

    async fn image_of(&self, spec: &Spec) -> Result<Image, VmError> {
        match spec.root() {
            RootFs::Directory { path } => {
                let root = RootSource::Directory(path.clone());
                self.found(Source { root, ..self.config.source.clone() }).await
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
                Err(VmError::NoSuchImage { .. }) => source().await,
                found => found,
            },
        }
    }

    async fn named(&self, name: &str) -> Result<Image, VmError> {
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || images.named(&name)).await
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, VmError> + Send + 'static) -> Result<T, VmError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(VmError::BadSource { what: "the making was interrupted".to_owned() }))
}

/// A sandbox that was measured. Dropping it ends it.
pub(crate) struct Raw {
    pub id: SandboxId,
    pub guest: Guest,
    pub vm: Arc<dyn Vm>,
    evidence: Evidence,
    plan: Plan,
    boot: String,
    /// What runs it, and why.
    runs: String,
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
        let making = tokio::spawn(async move { make(&host, &spec, plan).await });
        making.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "create", "the making was interrupted")))
    }

    /// Holds it against a spec: the posture, or an error and nothing left.
    pub(crate) async fn judge(&self, spec: &Spec) -> Result<Posture> {
        let Self { evidence, plan, boot, .. } = self;
        let (runs, kept) = (&self.runs, &self.vm.kept());
        let posture =
            posture(&Measured { spec, evidence, user: USER, shares: plan.shares, host_boot: boot, runs, kept });
        if let Err(error) = posture.require(spec.allow_weaker()) {
            self.close().await?;
            return Err(error);
        }
        Ok(posture)
    }

    /// Ends it; nothing is left when this returns.
    pub(crate) async fn close(&self) -> Result<()> {
        // What is in the machine is of no use to anybody any more: it need not end in peace.
        let ((), killed) = tokio::join!(self.guest.close(), self.vm.kill());
        killed.map_err(|error| error.into_error("close"))
    }
}

async fn make(host: &Arc<Host>, spec: &Spec, plan: Plan) -> Result<Raw> {
    let failed = |error: VmError| error.into_error("create");
    let image = host.image_of(spec).await.map_err(failed)?;
    let directory = host.config.disks.clone();
    let workspace = match plan.shares.disk {
        Some(bytes) => Some(blocking(move || empty_disk(directory, bytes)).await.map_err(failed)?),
        None => None,
    };
    let machine = machine(host, &plan, &image, workspace)?;
    let _turn = host.boots.acquire().await.map_err(|_| Error::closed("create"))?;
    let ready_by = Instant::now() + host.config.deadlines.boot;
    let Started { vm, reader, writer } = host.vmm.start(machine).await.map_err(failed)?;
    let vm: Arc<dyn Vm> = Arc::from(vm);
    let settings = Settings { reason: Some(reason(&vm)), ..Plan::settings(spec, &host.config) };
    match Guest::connect(reader, writer, settings, ready_by).await {
        Ok((guest, evidence)) => {
            let id = SandboxId::new(format!("cofferdam-{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..)));
            Ok(Raw { id, guest, vm, evidence, plan, boot: host.boot.clone(), runs: host.vmm.runs_with() })
        }
        Err(error) => Err(no_guest(&*vm, error).await),
    }
}

fn machine(host: &Host, plan: &Plan, image: &Image, workspace: Option<File>) -> Result<Machine> {
    let root = Disk { name: ROOT, contents: Contents::Shared(image.root.clone()), access: Access::ReadOnly };
    let own = |file| Disk { name: WORKSPACE, contents: Contents::Own(file), access: Access::ReadWrite };
    let disks: Vec<Disk> = [root].into_iter().chain(workspace.map(own)).collect();
    let words: Vec<String> = disks.iter().enumerate().map(|(at, disk)| host.vmm.disk_word(disk, at)).collect();
    Ok(Machine {
        kernel: image.kernel.clone(),
        initramfs: image.initramfs.clone(),
        command_line: plan.options(&words[0], words.get(1).map(String::as_str))?,
        memory: plan.memory,
        processors: plan.processors,
        disks,
        port: PORT,
    })
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

//! Creation of sandboxes: starts a VM, connects to its agent, and measures everything.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cofferdam_contract::{Access, ByteSize, Error, ErrorKind, Limits, Posture, Result, RootFs, SandboxId, Spec};
use cofferdam_guest::network::{Network, Opening};
use cofferdam_guest::{Evidence, Guest, Meter, Reason, Record, Reseed, Settings, Termination};
use cofferdam_image::{Image, ImageError, ext4};
use cofferdam_util::private;
use parking_lot::Mutex;

use crate::error::{VmError, io};
use crate::mounts::{self, MountedDisk};
use crate::plan::{self, PORT, Plan, SpecPlan, USER};
use crate::posture::{Measured, posture};
use crate::snapshot::{SnapshotManifest, VmSnapshot};
use crate::sparse;
use crate::state::BackendState;
use crate::task::{blocking, detached};
use crate::vmm::{Contents, Disk, Hardware, MAX_DEVICES, Started, Vm, VmDescription, VmState, Vmm};

const ROOT: &str = "cofferdam-root";
const WORKSPACE: &str = "cofferdam-work";
const RESTORE: &str = "restore";
/// Time for a VM to end after its port was closed, before it counts as still running.
const EXIT_TIMEOUT: Duration = Duration::from_millis(1500);

/// The disks of a sandbox.
struct Disks {
    root: Arc<File>,
    workspace: Option<Arc<File>>,
    /// Those at paths of their own, in the order of [`mounts::in_order`].
    mounted: Vec<MountedDisk>,
}

impl Disks {
    fn has_writable_mounts(&self) -> bool {
        self.mounted.iter().any(|disk| disk.access == Access::ReadWrite)
    }
}

/// Message of a VM's init whose disk could not be made clean.
const UNFINISHED: &str = "cannot finish writing to";
/// Time for a VM whose connection has closed to write what its writable mounts have cached, before it is killed.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// A sandbox that was created and measured. Dropping it kills its VM.
pub(crate) struct PendingSandbox {
    pub id: SandboxId,
    pub guest: Guest,
    pub vm: Arc<dyn Vm>,
    pub backend: Arc<BackendState>,
    pub evidence: Evidence,
    /// `None` if the policy allows no network.
    pub network: Option<Network>,
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
    pub(crate) async fn create(backend: &Arc<BackendState>, spec: &Spec) -> Result<Self> {
        let plan = Plan::of(spec, &backend.config)?;
        let (backend, spec) = (Arc::clone(backend), spec.clone());
        detached("create", async move { create(&backend, &spec, plan).await }).await
    }

    /// Restores a snapshot as another VM, in a task of its own.
    pub(crate) async fn restore(backend: &Arc<BackendState>, spec: &Spec, snapshot: &VmSnapshot) -> Result<Self> {
        let plan = Plan::of(spec, &backend.config)?;
        let (backend, spec, snapshot) = (Arc::clone(backend), spec.clone(), snapshot.clone());
        detached(RESTORE, async move { restore(&backend, &spec, plan, snapshot).await }).await
    }

    /// Takes a snapshot of the VM, which must be paused; `record` is its guest's.
    pub(crate) async fn capture(&self, record: Record) -> Result<VmSnapshot, VmError> {
        let closed = || VmError::InvalidSnapshot { what: "the sandbox is closed".to_owned() };
        let (root, workspace) = {
            let disks = self.disks.lock();
            let disks = disks.as_ref().ok_or_else(closed)?;
            if !disks.mounted.is_empty() {
                return Err(no_copy("snapshot").into());
            }
            (Arc::clone(&disks.root), disks.workspace.clone())
        };
        let directory = self.backend.config.disks.clone();
        let copying = blocking(move || {
            let copy = |disk: Arc<File>| sparse::copy_disk(&disk, &directory).map_err(io("copy a disk in", &directory));
            workspace.map(copy).transpose()
        });
        // Reserved before anything is copied: concurrent snapshots share the rest.
        let mut lease = self.backend.budget.take_up_to(self.plan.memory.as_bytes().saturating_add(MAX_DEVICES));
        let max = ByteSize::from_bytes(lease.bytes());
        let (state, disk) = tokio::join!(self.vm.snapshot(max), copying);
        let (state, disk): (VmState, Option<File>) = (state?, disk?);
        let taken = state.allocated()?;
        lease.grow(taken)?;
        lease.shrink(taken);
        let origin = self.backend.vmm.origin().await?;
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
        let Self { evidence, plan, backend, runs, .. } = self;
        let (host_boot, vmm_limits) = (&backend.boot, &self.vm.vmm_limits());
        let posture =
            posture(&Measured { spec, evidence, user: USER, shares: plan.shares, host_boot, runs, vmm_limits });
        if let Err(error) = posture.require(spec.allow_weaker()) {
            return Err(error.with_failed_close(self.close().await));
        }
        Ok(posture)
    }

    /// Kills the VM; nothing is left when this returns.
    pub(crate) async fn close(&self) -> Result<()> {
        if let Some(network) = &self.network {
            network.close().await;
        }
        let mut is_clean = true;
        if self.has_writable_mounts() {
            self.guest.close().await;
            is_clean = clean_up(&*self.vm).await;
        }
        // The other contents of the VM are of no use any more: it need not shut down cleanly.
        let ((), killed) = tokio::join!(self.guest.close(), self.vm.kill());
        drop(self.disks.lock().take());
        drop(self.from.lock().take());
        killed.map_err(|error| error.into_error("close"))?;
        if is_clean {
            return Ok(());
        }
        let message = "the VM did not finish writing to the disks of its mounts: the last writes may be missing there";
        Err(Error::new(ErrorKind::Io, "close", message)
            .with_remedy("write less at the end, or call sync before the end"))
    }

    /// Returns true if it has disks at paths of their own that it can write to.
    pub(crate) fn has_writable_mounts(&self) -> bool {
        self.disks.lock().as_ref().is_some_and(Disks::has_writable_mounts)
    }
}

async fn create(backend: &Arc<BackendState>, spec: &Spec, plan: Plan) -> Result<PendingSandbox> {
    let failed = |error: VmError| error.into_error("create");
    // An impossible configuration is reported before an image is looked for, or built.
    backend.vmm.check().await.map_err(failed)?;
    let image = backend.image_of(spec).await.map_err(failed)?;
    let directory = backend.config.disks.clone();
    let workspace = match plan.shares.disk {
        Some(bytes) => Some(blocking(move || empty_disk(directory, bytes)).await.map_err(failed)?),
        None => None,
    };
    let root = File::open(&image.root).map_err(io("open", &image.root)).map_err(failed)?;
    let disks = Disks { root: Arc::new(root), workspace: workspace.map(Arc::new), mounted: mounts::open(spec)? };
    let description = description(backend, spec, &plan, &image, &disks).await?;
    let opening = Opening::of(spec.network(), SpecPlan::of(spec)?.network).await?;
    let _turn = backend.boots.acquire().await.map_err(|_| Error::closed("create"))?;
    let ready_by = Instant::now() + backend.config.deadlines.boot;
    let Started { vm, reader, writer } = backend.vmm.start(description).await.map_err(failed)?;
    let vm: Arc<dyn Vm> = Arc::from(vm);
    let settings = settings(backend, spec, &vm, opening.as_ref());
    match Guest::connect(reader, writer, settings, ready_by).await {
        Ok((guest, evidence)) => Ok(PendingSandbox {
            network: start_network(&guest, &*vm, opening).await?,
            id: new_id(),
            guest: bind(guest, &vm, disks.has_writable_mounts()),
            vm,
            backend: Arc::clone(backend),
            evidence,
            plan,
            runs: backend.vmm.runs_with(),
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

async fn restore(backend: &Arc<BackendState>, spec: &Spec, plan: Plan, snapshot: VmSnapshot) -> Result<PendingSandbox> {
    let failed = |error: VmError| error.into_error(RESTORE);
    if !spec.mounts().is_empty() {
        return Err(no_copy(RESTORE));
    }
    let manifest = snapshot.manifest();
    manifest.check_spec(&plan, spec).map_err(failed)?;
    manifest.check_origin(&backend.vmm.origin().await.map_err(failed)?).map_err(failed)?;
    let root = root_of(backend, spec, &snapshot).await.map_err(failed)?;
    let (directory, from) = (backend.config.disks.clone(), snapshot.clone());
    let workspace = blocking(move || {
        let copy = |disk: &File| sparse::copy_disk(disk, &directory).map_err(io("copy a disk in", &directory));
        from.disk().map(copy).transpose()
    });
    let workspace = workspace.await.map_err(failed)?.map(Arc::new);
    let disks = Disks { root, workspace, mounted: Vec::new() };
    let parts = hardware(&plan, &disks).map_err(failed)?;
    let opening = Opening::of(spec.network(), SpecPlan::of(spec)?.network).await?.map(Opening::resumed);
    let ready_by = Instant::now() + backend.config.deadlines.boot;
    let Started { vm, reader, writer } = backend.vmm.restore(parts, snapshot.state()).await.map_err(failed)?;
    let vm: Arc<dyn Vm> = Arc::from(vm);
    let settings = settings(backend, spec, &vm, opening.as_ref());
    let id = new_id();
    let reseed = Reseed::new(id.as_str())?;
    vm.resume().await.map_err(failed)?;
    let saved = (manifest.guest().clone(), snapshot.evidence());
    match Guest::reattach(reader, writer, settings, saved, reseed, ready_by).await {
        Ok((guest, evidence)) => Ok(PendingSandbox {
            network: start_network(&guest, &*vm, opening).await?,
            id,
            guest: bind(guest, &vm, disks.has_writable_mounts()),
            vm,
            backend: Arc::clone(backend),
            evidence,
            plan,
            runs: backend.vmm.runs_with(),
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

/// Returns the settings of the connection to the guest.
fn settings(backend: &BackendState, spec: &Spec, vm: &Arc<dyn Vm>, opening: Option<&Opening>) -> Settings {
    let settings = Plan::settings(spec, &backend.config);
    let mut settings = Settings { reason: Some(reason(vm)), meter: Some(meter(vm)), ..settings };
    if let Some(opening) = opening {
        opening.configure(&mut settings);
    }
    settings
}

/// Starts the network. Kills the VM if that is impossible.
async fn start_network(guest: &Guest, vm: &dyn Vm, opening: Option<Opening>) -> Result<Option<Network>> {
    let Some(opening) = opening else { return Ok(None) };
    match Network::start(guest, opening).await {
        Ok(network) => Ok(Some(network)),
        Err(error) => {
            guest.close().await;
            Err(error.with_failed_close(vm.kill().await.map_err(|error| error.into_error("close"))))
        }
    }
}

fn new_id() -> SandboxId {
    SandboxId::new(format!("cofferdam-{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..)))
}

/// Returns the root file system of a snapshot's VM: the file that it had open, or the image of that key.
async fn root_of(backend: &BackendState, spec: &Spec, snapshot: &VmSnapshot) -> Result<Arc<File>, VmError> {
    if let Some((root, file)) = snapshot.root()
        && root == spec.root()
    {
        return Ok(Arc::clone(file));
    }
    let image = backend.check(snapshot.manifest(), spec).await?;
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
    for MountedDisk { name, file, access } in &disks.mounted {
        all.push(Disk { name, contents: copy(file)?, access: *access });
    }
    Ok(Hardware { memory: plan.memory, processors: plan.processors, disks: all, port: PORT })
}

/// Returns the error for a copy of a sandbox with disks that others use, too.
fn no_copy(operation: &'static str) -> Error {
    Error::unsupported(operation, "a snapshot of a VM contains no disks of mounts")
        .with_remedy("create the sandbox without volumes")
}

async fn description(
    backend: &BackendState,
    spec: &Spec,
    plan: &Plan,
    image: &Image,
    disks: &Disks,
) -> Result<VmDescription> {
    let (has_workspace, mounts) = (disks.workspace.is_some(), mounts::in_order(spec));
    let failed = |error: VmError| error.into_error("create");
    let Hardware { memory, processors, disks, port } = hardware(plan, disks).map_err(failed)?;
    let (kernel, initramfs) = (image.kernel.clone(), image.initramfs.clone());
    let mut description =
        VmDescription { kernel, initramfs, command_line: String::new(), memory, processors, disks, port };
    let vmm = backend.vmm();
    vmm.settle(&description).await.map_err(failed)?;
    let names: Vec<String> = description.disks.iter().enumerate().map(|(at, disk)| vmm.disk_name(disk, at)).collect();
    let port = vmm.port_name(description.port);
    let (root, rest) = names.split_at(1);
    let (workspace, rest) = rest.split_at(usize::from(has_workspace));
    let mounts: Vec<_> = mounts.into_iter().zip(rest.iter().map(String::as_str)).collect();
    description.command_line = plan.options(&port, &root[0], workspace.first().map(String::as_str), &mounts)?;
    Ok(description)
}

/// Kills a VM whose agent did not connect, and returns the reason.
async fn no_guest(vm: &dyn Vm, error: Error) -> Error {
    let ended = tokio::time::timeout(EXIT_TIMEOUT, vm.ended()).await.ok();
    let console = vm.console();
    if let Err(error) = vm.kill().await {
        return error.into_error("create");
    }
    match ended {
        Some(ended) => VmError::BootFailed { reason: ended.why, console }.into_error("create").with_source(error),
        None if console.trim().is_empty() => error,
        None => error.with_context("console", crate::error::excerpt_end(&console)),
    }
}

/// Creates an unnamed disk with an empty file system.
fn empty_disk(directory: PathBuf, bytes: u64) -> Result<File, VmError> {
    private::create_directory(&directory).map_err(io("create", &directory))?;
    let file = tempfile::tempfile_in(&directory).map_err(io("create a disk in", &directory))?;
    file.set_len(bytes).map_err(io("size a disk in", &directory))?;
    ext4::make_empty(&file, plan::max_files_on_disk(bytes)).map_err(ImageError::from)?;
    Ok(file)
}

/// Waits until the init of a VM whose connection has closed has made its disks clean, and has ended the VM. Returns false
/// if it did not in time.
async fn clean_up(vm: &dyn Vm) -> bool {
    let ended = tokio::time::timeout(CLEAN_UP_TIMEOUT, vm.ended()).await;
    ended.is_ok_and(|ended| ended.by_itself) && !vm.console().contains(UNFINISHED)
}

/// Kills a VM when its connection closes: without a connection, no limit of its execs is enforced. A VM with writable
/// mounts has some time to make their disks clean.
fn bind(guest: Guest, vm: &Arc<dyn Vm>, has_writable_mounts: bool) -> Guest {
    let (closed, vm) = (guest.until_closed(), Arc::downgrade(vm));
    tokio::spawn(async move {
        closed.await;
        if let Some(vm) = vm.upgrade() {
            if has_writable_mounts {
                clean_up(&*vm).await;
            }
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
            Some(Termination { remedy: Some("create another sandbox".to_owned()), ..Termination::new(why) })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;
    use crate::config::VmConfig;

    #[test]
    fn vms_share_no_file_position_in_the_root_disk() {
        let root = sparse::blank(4096).unwrap();
        let plan = Plan::of(&Spec::default(), &VmConfig::new("/x")).unwrap();
        let disks = Disks { root: Arc::new(root), workspace: None, mounted: Vec::new() };
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

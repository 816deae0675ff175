//! The Firecracker driver.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Access, ByteSize};
use parking_lot::Mutex;
use tokio::net::UnixStream;

use super::channel::{self, Channel};
use super::client::Deadlines;
use super::confinement::{self, VmFile};
use super::ids::DriveId;
use super::jailer::{self, Jailer};
use super::model::{BootSource, Drive, MachineConfig, SnapshotLoad, Vsock};
use super::process::Launch;
use super::request::Request;
use super::version::{self, Version};
use super::vm::{Dumps, FirecrackerVm, MEMORY_OUT, RunState, STATE_OUT};
use super::vmlinux;
use super::{PROGRAM, broken};
use crate::bounds::{Sharing, VmmLimits};
use crate::error::{Result, VmError, io};
use crate::kvm;
use crate::task::blocking;
use crate::vmm::{
    ARCHITECTURE, Accelerator, Boot, Contents, Disk, Hardware, Origin, Started, VmDescription, VmState, Vmm,
};

const MEBIBYTE: u64 = 1 << 20;
/// Firecracker's maximum number of processors for a VM.
const MAX_PROCESSORS: u32 = 32;
/// The isolation by the jailer, where it differs from that of other VMMs, for the posture.
const JAILED: &str =
    ", isolated by its own jailer (a root directory, users, mounts, processes and no network of its own; no Landlock),";
const OLDEST_TEXT: &str = "1.16.2";
/// Time for a program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum time to open its socket, however short the deadline for answers is.
const MIN_READY_TIMEOUT: Duration = Duration::from_secs(20);
/// File names in a VM's directory.
const KERNEL: &str = "kernel";
const INITRAMFS: &str = "initramfs";
const VSOCK: &str = "v.sock";
const STATE_IN: &str = "state.in";
const MEMORY_IN: &str = "memory.in";

/// Configuration of Firecracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirecrackerConfig {
    /// Absolute path of its program. Without one, no VM is created.
    pub program: Option<PathBuf>,
    /// Use of Firecracker's own jailer.
    pub jailer: Jailer,
    /// Directory of the VMs' directories with sockets and links, created when it is first needed.
    pub directory: PathBuf,
    /// Deadline for an answer; twice as long where memory is read or written.
    pub timeout: Duration,
}

impl FirecrackerConfig {
    /// Creates a configuration without a program, with the default deadlines.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { program: None, jailer: Jailer::Off, directory: directory.into(), timeout: Duration::from_secs(30) }
    }
}

/// The VMM Firecracker.
#[derive(Debug)]
pub struct FirecrackerVmm {
    config: FirecrackerConfig,
    /// The version of the programs, and the files that it was read from.
    known: tokio::sync::Mutex<Option<(Vec<Stamp>, Version)>>,
    /// The kernel that was unpacked last.
    kernel: Mutex<Option<(PathBuf, Arc<File>)>>,
}

impl FirecrackerVmm {
    /// Creates it. Inspects and starts nothing before the first use.
    pub fn new(config: FirecrackerConfig) -> Self {
        Self { config, known: tokio::sync::Mutex::default(), kernel: Mutex::default() }
    }

    /// Returns Firecracker, and its jailer if that is to start it.
    fn programs(&self) -> Result<(PathBuf, Option<PathBuf>)> {
        let program = self.config.program.as_deref().ok_or(VmError::MissingTool { tool: PROGRAM })?;
        let whole = confinement::trusted_path(PROGRAM, program)?;
        let jailer = self.config.jailer.program(program)?;
        if jailer.is_some() {
            jailer::check(&whole)?;
        }
        Ok((whole, jailer))
    }

    /// Returns the version of the installed programs. They are queried again after they were replaced.
    async fn installed_version(&self) -> Result<Version> {
        if std::env::consts::ARCH != ARCHITECTURE {
            return Err(broken(format!("VMs run only on {ARCHITECTURE}")));
        }
        let (program, jailer) = self.programs()?;
        let stamps = [Some(&program), jailer.as_ref()].into_iter().flatten().map(|path| Stamp::of(path));
        let stamps = stamps.collect::<Result<Vec<_>>>()?;
        let mut known = self.known.lock().await;
        if let Some((_, version)) = known.as_ref().filter(|(found, _)| *found == stamps) {
            return Ok(*version);
        }
        *known = None;
        let version = version::of_program("probe", &program, VERSION_TIMEOUT).await?;
        version.check_supported("probe")?;
        // With older versions, the agent never learns that a snapshot closed its connection.
        if !version.hears_after_resume() {
            let found = version.to_string();
            return Err(VmError::OutdatedTool { tool: PROGRAM, found, needed: OLDEST_TEXT });
        }
        if let Some(jailer) = jailer {
            let jailer_version = version::of_program("probe", &jailer, VERSION_TIMEOUT).await?;
            if jailer_version != version {
                let why = format!("it has version {jailer_version}, and Firecracker {version}");
                let remedy = "install both from the same release";
                return Err(VmError::JailerUnusable { why, remedy });
            }
        }
        *known = Some((stamps, version));
        Ok(version)
    }

    /// Returns a kernel in the format that Firecracker needs.
    async fn kernel(&self, path: &Path) -> Result<Arc<File>> {
        let known = self.kernel.lock().clone();
        if let Some((_, kernel)) = known.filter(|(known, _)| known == path) {
            return Ok(kernel);
        }
        let from = path.to_owned();
        let unpacked = Arc::new(blocking(move || vmlinux::unpacked(&from)).await?);
        *self.kernel.lock() = Some((path.to_owned(), Arc::clone(&unpacked)));
        Ok(unpacked)
    }

    /// Starts a Firecracker without a VM yet, with access to the VM's files.
    async fn launch(
        &self,
        hardware: &Hardware,
        mut all: Vec<VmFile>,
        sharing: Sharing,
    ) -> Result<(FirecrackerVm, UnixStream)> {
        let version = self.installed_version().await?;
        let (program, jailer) = self.programs()?;
        let dumps = Dumps::new()?;
        for (at, disk) in hardware.disks.iter().enumerate() {
            all.push(VmFile::new(disk_name(at), opened(disk)?, disk.access));
        }
        all.push(VmFile::new(STATE_OUT, copy(&dumps.devices)?, Access::ReadWrite));
        all.push(VmFile::new(MEMORY_OUT, copy(&dumps.memory)?, Access::ReadWrite));
        let (base, shown_to, vmm_limits) =
            (self.config.directory.clone(), program.clone(), VmmLimits::of_firecracker(hardware, sharing));
        let confined = blocking(move || {
            let id = confinement::prepare_base(&base)?;
            let confined = match jailer {
                None => confinement::confine(&base, &id, &shown_to, all, &vmm_limits)?,
                Some(jailer) => jailer::confine(&jailer, (&canonical(&base)?, &id), &shown_to, all, &vmm_limits)?,
            };
            Ok((confined, id))
        });
        let (confined, id) = confined.await?;
        let timeout = self.config.timeout;
        let deadlines = Deadlines { connect: timeout, call: timeout, slow: timeout * 2 };
        let launch = Launch { program, ready: timeout.max(MIN_READY_TIMEOUT), deadlines };
        let process = launch.start(confined, &id).await?;
        if process.version() != version {
            let (found, what) = (process.version(), "its program was replaced while a VM was started");
            // The sweep reports files that cannot be removed now.
            let _ = process.end().await;
            return Err(broken(format!("{what}: expected version {version}, found {found}; try again")));
        }
        let pair = channel::pair(&process.view.outside.join(VSOCK))?;
        let watched = process.watch()?;
        let boots = sharing == Sharing::Own;
        // Nothing can fail from here until the caller owns the VM and can kill it.
        let (channel, streams) =
            Channel::begin(pair, (watched.directory.join(VSOCK), watched.tree.clone()), watched.end.clone(), boots);
        let state = if boots { RunState::Running } else { RunState::Paused { connected: false } };
        let memory = (dumps, memory_size(hardware));
        Ok((FirecrackerVm::new(watched, channel, memory, state, timeout), streams))
    }

    /// Sends all requests, or kills the VM. Its directory is closed when all files in it are created: before the last
    /// request if that starts the VM, else after it.
    async fn configure(vm: FirecrackerVm, operation: &'static str, requests: &[Request]) -> Result<FirecrackerVm> {
        for request in requests {
            let closed = match request {
                Request::Start => vm.close_directory().await,
                _ => Ok(()),
            };
            let done = match closed {
                Ok(()) => vm.send(operation, request).await,
                Err(error) => Err(error),
            };
            let done = match (request, done) {
                (Request::LoadSnapshot(_), Ok(())) => vm.close_directory().await,
                (_, done) => done,
            };
            if let Err(error) = done {
                return Err(vm.kill_for(error).await);
            }
        }
        Ok(vm)
    }
}

/// The identity of a program's file, to detect its replacement.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    length: u64,
    /// Modification time, and change time.
    times: [(i64, i64); 2],
}

impl Stamp {
    fn of(program: &Path) -> Result<Self> {
        let found = program.metadata().map_err(io("inspect", program))?;
        let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
        Ok(Self { file: (found.dev(), found.ino()), length: found.len(), times })
    }
}

/// Returns the canonical path of a directory, which is valid in other processes, too.
fn canonical(directory: &Path) -> Result<PathBuf> {
    directory.canonicalize().map_err(io("find", directory))
}

/// Returns the requests that configure and start a VM, in order.
fn boot_requests(hardware: &Hardware, boot: &Boot, kernel_arguments: &str) -> Result<Vec<Request>> {
    let kernel = BootSource {
        kernel_image_path: KERNEL.into(),
        initrd_path: INITRAMFS.into(),
        boot_args: format!("{kernel_arguments} {}", boot.command_line),
    };
    let machine = MachineConfig::new(hardware.processors, ByteSize::from_bytes(memory_size(hardware)))?;
    let mut all = vec![Request::Machine(machine), Request::BootSource(kernel)];
    for (at, disk) in hardware.disks.iter().enumerate() {
        let (id, path) = (DriveId::new(disk_name(at))?, disk_name(at));
        all.push(Request::Drive(match disk.access {
            Access::ReadOnly => Drive::read_only(id, path),
            // Written data survives the VM in the host's page cache; a crash of the host loses both.
            Access::ReadWrite => Drive::writable(id, path),
        }));
    }
    all.extend([Request::Entropy, Request::Vsock(Vsock::new(VSOCK)), Request::Start]);
    Ok(all)
}

fn disk_name(at: usize) -> String {
    format!("disk{at}")
}

/// Returns the VM's memory size, rounded up to whole mebibytes.
fn memory_size(hardware: &Hardware) -> u64 {
    hardware.memory.as_bytes().next_multiple_of(MEBIBYTE)
}

fn copy(file: &File) -> Result<File> {
    file.try_clone().map_err(io("copy a descriptor for", PROGRAM))
}

fn reopen(file: &File) -> Result<File> {
    // With a file position of its own.
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io("reopen for", PROGRAM))
}

fn opened(disk: &Disk) -> Result<File> {
    match (&disk.contents, disk.access) {
        (Contents::Shared(path), Access::ReadOnly) => File::open(path).map_err(io("open", path)),
        (Contents::Shared(_), _) => Err(broken("a shared disk cannot be writable")),
        (Contents::Own(file), _) => copy(file),
    }
}

/// Refuses an unsupported number of processors.
fn check(processors: u32) -> Result<()> {
    if processors <= MAX_PROCESSORS {
        return Ok(());
    }
    Err(VmError::Unsupported {
        vmm: PROGRAM,
        what: format!("supports at most {MAX_PROCESSORS} processors, not {processors}"),
        remedy: "lower --cpus, or use the driver qemu",
    })
}

#[async_trait]
impl Vmm for FirecrackerVmm {
    fn name(&self) -> &'static str {
        PROGRAM
    }

    fn runs_with(&self) -> String {
        let jailed = match self.config.jailer {
            Jailer::Off => "",
            Jailer::Beside | Jailer::At(_) => JAILED,
        };
        format!("Firecracker{jailed} has the processor run its instructions (kvm)")
    }

    fn kernel_arguments(&self) -> String {
        // Firecracker has no power switch, and treats a restart by the keyboard controller as the end.
        "console=ttyS0 quiet panic=-1 reboot=k random.trust_cpu=on pci=off 8250.nr_uarts=1 i8042.noaux i8042.nomux \
         i8042.dumbkbd cryptomgr.notests rcupdate.rcu_expedited=1"
            .to_owned()
    }

    fn disk_name(&self, _: &Disk, index: usize) -> String {
        // Its disks have no configurable serial numbers; the kernel names them in the order of the requests.
        let letter = u8::try_from(index).ok().and_then(|index| b'a'.checked_add(index)).unwrap_or(b'z');
        format!("vd{}", char::from(letter))
    }

    fn port_name(&self, _: &str) -> String {
        format!("vsock:{}", channel::PORT)
    }

    async fn settle(&self, description: &VmDescription) -> Result<()> {
        check(description.processors)
    }

    async fn version(&self) -> Result<String> {
        self.installed_version().await.map(|version| version.to_string())
    }

    async fn start(&self, description: VmDescription) -> Result<Started> {
        let (hardware, boot) = description.into_parts();
        check(hardware.processors)?;
        let requests = boot_requests(&hardware, &boot, &self.kernel_arguments())?;
        let kernel = reopen(&*self.kernel(&boot.kernel).await?)?;
        let initramfs = File::open(&boot.initramfs).map_err(io("open", &boot.initramfs))?;
        let all =
            vec![VmFile::new(KERNEL, kernel, Access::ReadOnly), VmFile::new(INITRAMFS, initramfs, Access::ReadOnly)];
        let (vm, streams) = self.launch(&hardware, all, Sharing::Own).await?;
        Ok(started(Self::configure(vm, "create", &requests).await?, streams))
    }

    async fn origin(&self) -> Result<Origin> {
        Ok(Origin {
            vmm: self.name().to_owned(),
            version: self.version().await?,
            vm_type: format!("{PROGRAM} {ARCHITECTURE}"),
            accelerator: Accelerator::Kvm,
            processor: "host".to_owned(),
            host: Some(kvm::host_processor()),
            ticks_per_millisecond: None,
        })
    }

    async fn restore(&self, hardware: Hardware, state: &VmState) -> Result<Started> {
        check(hardware.processors)?;
        let (found, length) = (state.memory().metadata().map(|found| found.len()), memory_size(&hardware));
        let found = found.map_err(io("inspect", "the memory of a VM"))?;
        if found != length {
            let what = format!("the state has {found} bytes of memory, and the VM {length}");
            return Err(VmError::Invalid { what });
        }
        let all = vec![
            VmFile::new(STATE_IN, reopen(state.devices())?, Access::ReadOnly),
            VmFile::new(MEMORY_IN, reopen(state.memory())?, Access::ReadOnly),
        ];
        let (vm, streams) = self.launch(&hardware, all, Sharing::State).await?;
        let load = Request::LoadSnapshot(SnapshotLoad::new(STATE_IN, MEMORY_IN, VSOCK));
        Ok(started(Self::configure(vm, "restore", &[load]).await?, streams))
    }
}

fn started(vm: FirecrackerVm, streams: UnixStream) -> Started {
    let (reader, writer) = streams.into_split();
    Started { vm: Box::new(vm), reader: Box::pin(reader), writer: Box::pin(writer) }
}

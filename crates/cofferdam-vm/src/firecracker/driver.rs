//! Makes machines with Firecracker.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Access, ByteSize};
use tokio::net::UnixStream;

use super::channel::{self, Channel};
use super::client::Deadlines;
use super::ids::DriveId;
use super::jailer::{self, Jailer};
use super::model::{Action, BootSource, CacheType, Drive, Entropy, MachineConfig, SnapshotLoad, Vsock};
use super::process::Launch;
use super::request::Request;
use super::version::{self, Version};
use super::vm::{Dumps, FirecrackerVm, MEMORY_OUT, STATE_OUT, Stand};
use super::walls::{self, Shown};
use super::{PROGRAM, broken};
use crate::bounds::Allowance;
use crate::error::{Result, VmError, io};
use crate::image::vmlinux;
use crate::make::blocking;
use crate::qemu::{self, PROCESSORS, Sharing};
use crate::vmm::{Accelerator, Boot, Contents, Disk, Hardware, Machine, MachineState, Origin, Started, Vmm};

const MEBIBYTE: u64 = 1 << 20;
/// The most processors that it gives to a machine.
const MAX_PROCESSORS: u32 = 32;
/// What differs from the walls that other monitors have, for the posture.
const JAILED: &str = ", walled in by its own jailer (a root directory, users, mounts, processes and no network of its own; no Landlock),";
const OLDEST_TEXT: &str = "1.16.2";
/// Time to say which version it is.
const VERSION_LIMIT: Duration = Duration::from_secs(20);
/// Time to open its socket, however short it has for answers.
const LEAST_READY: Duration = Duration::from_secs(20);
/// Each machine has a vsock of its own, so all have the same address.
const ADDRESS: u32 = 3;
/// Names in a machine's directory.
const KERNEL: &str = "kernel";
const INITRAMFS: &str = "initramfs";
const VSOCK: &str = "v.sock";
const STATE_IN: &str = "state.in";
const MEMORY_IN: &str = "memory.in";

/// How Firecracker is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirecrackerConfig {
    /// Its program, by its whole path. Without one, no machine is made.
    pub program: Option<PathBuf>,
    /// Whether machines are started by Firecracker's own jailer.
    pub jailer: Jailer,
    /// Where machines have their directories, which hold sockets and links; made when it is first needed.
    pub place: PathBuf,
    /// Time that it has for an answer; twice as much where memory is read or written.
    pub patience: Duration,
}

impl FirecrackerConfig {
    /// No program, and the usual times.
    pub fn new(place: impl Into<PathBuf>) -> Self {
        Self { program: None, jailer: Jailer::Off, place: place.into(), patience: Duration::from_secs(30) }
    }
}

/// Makes machines with Firecracker.
#[derive(Debug)]
pub struct FirecrackerVmm {
    config: FirecrackerConfig,
    /// The programs that were asked for their version last, as they were then.
    known: tokio::sync::Mutex<Option<(Vec<Stamp>, Version)>>,
    /// The kernel that was unpacked last.
    kernel: Mutex<Option<(PathBuf, Arc<File>)>>,
}

impl FirecrackerVmm {
    /// Nothing is looked at or started before the first use.
    pub fn new(config: FirecrackerConfig) -> Self {
        Self { config, known: tokio::sync::Mutex::default(), kernel: Mutex::default() }
    }

    /// Firecracker, and its jailer if that is to start it.
    fn programs(&self) -> Result<(PathBuf, Option<PathBuf>)> {
        let program = self.config.program.as_deref().ok_or(VmError::MissingTool { tool: PROGRAM })?;
        let whole = walls::whole(PROGRAM, program)?;
        let jailer = self.config.jailer.program(program)?;
        if jailer.is_some() {
            jailer::check(&whole)?;
        }
        Ok((whole, jailer))
    }

    /// The version of the programs that stand there now: they are asked again when they were replaced.
    async fn asked(&self) -> Result<Version> {
        if std::env::consts::ARCH != PROCESSORS {
            return Err(broken(format!("machines are made on {PROCESSORS} only so far")));
        }
        let (program, jailer) = self.programs()?;
        let stamps = [Some(&program), jailer.as_ref()].into_iter().flatten().map(|path| Stamp::of(path));
        let stamps = stamps.collect::<Result<Vec<_>>>()?;
        let mut known = self.known.lock().await;
        if let Some((_, version)) = known.as_ref().filter(|(found, _)| *found == stamps) {
            return Ok(*version);
        }
        *known = None;
        let version = version::of_program("probe", &program, VERSION_LIMIT).await?;
        version.standing("probe")?;
        // Others never hear of the connection again that a machine loses when it is written down.
        if !version.hears_after_resume() {
            let found = version.to_string();
            return Err(VmError::OldTool { tool: PROGRAM, found, needed: OLDEST_TEXT });
        }
        if let Some(jailer) = jailer {
            let its = version::of_program("probe", &jailer, VERSION_LIMIT).await?;
            if its != version {
                let why = format!("it has version {its}, and Firecracker {version}");
                let remedy = "install both from one release: each jailer is for Firecracker of its own version";
                return Err(VmError::NoJailer { why, remedy });
            }
        }
        *known = Some((stamps, version));
        Ok(version)
    }

    /// A kernel as Firecracker takes it.
    async fn kernel(&self, path: &Path) -> Result<Arc<File>> {
        let known = self.kernel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, kernel)) = known.filter(|(known, _)| known == path) {
            return Ok(kernel);
        }
        let from = path.to_owned();
        let unpacked = Arc::new(blocking(move || vmlinux::unpacked(&from)).await?);
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = Some((path.to_owned(), Arc::clone(&unpacked)));
        Ok(unpacked)
    }

    /// Starts a Firecracker that has no machine yet, and is shown what the machine is to be made of.
    async fn launch(
        &self,
        hardware: &Hardware,
        mut all: Vec<Shown>,
        sharing: Sharing,
    ) -> Result<(FirecrackerVm, UnixStream)> {
        let version = self.asked().await?;
        let (program, jailer) = self.programs()?;
        let dumps = Dumps::new()?;
        for (at, disk) in hardware.disks.iter().enumerate() {
            all.push(Shown::new(disk_name(at), opened(disk)?, disk.access));
        }
        all.push(Shown::new(STATE_OUT, copy(&dumps.devices)?, Access::ReadWrite));
        all.push(Shown::new(MEMORY_OUT, copy(&dumps.memory)?, Access::ReadWrite));
        let (base, shown_to, may) =
            (self.config.place.clone(), program.clone(), Allowance::of_firecracker(hardware, sharing));
        let raised = blocking(move || {
            let id = walls::place(&base)?;
            let raised = match jailer {
                None => walls::raise(&base, &id, &shown_to, all, &may)?,
                Some(jailer) => jailer::raise(&jailer, (&whole(&base)?, &id), &shown_to, all, &may)?,
            };
            Ok((raised, id))
        });
        let (raised, id) = raised.await?;
        let patience = self.config.patience;
        let deadlines = Deadlines { connect: patience, call: patience, slow: patience * 2 };
        let launch = Launch { program, ready: patience.max(LEAST_READY), deadlines };
        let process = launch.start_behind(raised, &id).await?;
        if process.version() != version {
            let (found, what) = (process.version(), "its program was replaced while a machine was started");
            // What cannot be removed now is said to whoever sweeps.
            let _ = process.end().await;
            return Err(broken(format!("{what}: {version} was there, and {found} answers; try again")));
        }
        let pair = channel::pair(&process.view.outside.join(VSOCK))?;
        let watched = process.watch()?;
        let boots = sharing == Sharing::Own;
        // Nothing can fail any more before somebody has the machine who can end it.
        let (channel, streams) =
            Channel::begin(pair, (watched.directory.join(VSOCK), watched.tree.clone()), watched.end.clone(), boots);
        let stand = if boots { Stand::Runs } else { Stand::Still { connected: false } };
        let memory = (dumps, memory_size(hardware));
        Ok((FirecrackerVm::new(watched, channel, memory, stand, patience), streams))
    }

    /// Has it do all of this, or ends it. Its directory is closed when it has made what it needs there: before the last request,
    /// if that lets the machine run, else after it.
    async fn told(vm: FirecrackerVm, operation: &'static str, requests: &[Request]) -> Result<FirecrackerVm> {
        for request in requests {
            let closed = match request {
                Request::Act(Action::InstanceStart) => vm.close_directory().await,
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
                return Err(vm.give_up(error).await);
            }
        }
        Ok(vm)
    }
}

/// What tells a program from the one that takes its place.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    length: u64,
    /// When its contents, and when anything of it was changed.
    times: [(i64, i64); 2],
}

impl Stamp {
    fn of(program: &Path) -> Result<Self> {
        let found = program.metadata().map_err(io("look at", program))?;
        let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
        Ok(Self { file: (found.dev(), found.ino()), length: found.len(), times })
    }
}

/// A directory as others find it, too.
fn whole(place: &Path) -> Result<PathBuf> {
    place.canonicalize().map_err(io("find", place))
}

/// What a machine is made with, in order.
fn boot_requests(hardware: &Hardware, boot: &Boot, words: &str) -> Result<Vec<Request>> {
    let kernel = BootSource {
        kernel_image_path: KERNEL.into(),
        initrd_path: Some(INITRAMFS.into()),
        boot_args: Some(format!("{words} {}", boot.command_line)),
    };
    let machine = MachineConfig::new(hardware.processors, ByteSize::from_bytes(memory_size(hardware)))?;
    let mut all = vec![Request::Machine(machine), Request::BootSource(kernel)];
    for (at, disk) in hardware.disks.iter().enumerate() {
        let (id, path) = (DriveId::new(disk_name(at))?, disk_name(at));
        all.push(Request::Drive(match disk.access {
            Access::ReadOnly => Drive::read_only(id, path),
            // What the host has written survives the machine; a crash of the host takes both.
            Access::ReadWrite => Drive::writable(id, path, CacheType::Unsafe),
        }));
    }
    all.push(Request::Entropy(Entropy::default()));
    all.push(Request::Vsock(Vsock::new(ADDRESS, VSOCK)?));
    all.push(Request::Act(Action::InstanceStart));
    Ok(all)
}

fn disk_name(at: usize) -> String {
    format!("disk{at}")
}

/// Bytes of memory that the machine has: whole mebibytes.
fn memory_size(hardware: &Hardware) -> u64 {
    hardware.memory.as_bytes().next_multiple_of(MEBIBYTE)
}

fn copy(file: &File) -> Result<File> {
    file.try_clone().map_err(io("copy a descriptor for", PROGRAM))
}

fn again(file: &File) -> Result<File> {
    // With a position of its own.
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io("open again for", PROGRAM))
}

fn opened(disk: &Disk) -> Result<File> {
    match (&disk.contents, disk.access) {
        (Contents::Shared(path), Access::ReadOnly) => File::open(path).map_err(io("open", path)),
        (Contents::Shared(_), _) => Err(broken("a disk that is shared cannot be written to")),
        (Contents::Own(file), _) => copy(file),
    }
}

/// Refuses what it cannot make.
fn check(processors: u32) -> Result<()> {
    if processors <= MAX_PROCESSORS {
        return Ok(());
    }
    Err(VmError::Lacks {
        monitor: PROGRAM,
        what: format!("gives a machine {MAX_PROCESSORS} processors at most, not {processors}"),
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

    fn kernel_words(&self) -> String {
        // It has no power switch, and takes the keyboard controller's restart for the end.
        "console=ttyS0 quiet panic=-1 reboot=k random.trust_cpu=on pci=off 8250.nr_uarts=1 i8042.noaux i8042.nomux \
         i8042.dumbkbd cryptomgr.notests rcupdate.rcu_expedited=1"
            .to_owned()
    }

    fn disk_word(&self, _: &Disk, place: usize) -> String {
        // Its disks have no serial numbers of ours; the kernel finds them in the order in which they are named.
        let letter = u8::try_from(place).ok().and_then(|place| b'a'.checked_add(place)).unwrap_or(b'z');
        format!("vd{}", char::from(letter))
    }

    fn port_word(&self, _: &str) -> String {
        format!("vsock:{}", channel::PORT)
    }

    async fn settle(&self, machine: &Machine) -> Result<()> {
        check(machine.processors)
    }

    async fn version(&self) -> Result<String> {
        self.asked().await.map(|version| version.to_string())
    }

    async fn start(&self, machine: Machine) -> Result<Started> {
        let (hardware, boot) = machine.into_parts();
        check(hardware.processors)?;
        let requests = boot_requests(&hardware, &boot, &self.kernel_words())?;
        let kernel = again(&*self.kernel(&boot.kernel).await?)?;
        let initramfs = File::open(&boot.initramfs).map_err(io("open", &boot.initramfs))?;
        let all =
            vec![Shown::new(KERNEL, kernel, Access::ReadOnly), Shown::new(INITRAMFS, initramfs, Access::ReadOnly)];
        let (vm, streams) = self.launch(&hardware, all, Sharing::Own).await?;
        Ok(started(Self::told(vm, "create", &requests).await?, streams))
    }

    async fn origin(&self) -> Result<Origin> {
        Ok(Origin {
            monitor: self.name().to_owned(),
            version: self.version().await?,
            machine: format!("{PROGRAM} {PROCESSORS}"),
            accelerator: Accelerator::Kvm,
            processor: "host".to_owned(),
            host: Some(qemu::host_processor()),
            ticks_per_millisecond: None,
        })
    }

    async fn restore(&self, hardware: Hardware, state: &MachineState) -> Result<Started> {
        check(hardware.processors)?;
        let (found, length) = (state.memory().metadata().map(|found| found.len()), memory_size(&hardware));
        let found = found.map_err(io("look at", "the memory of a machine"))?;
        if found != length {
            let what = format!("a state with {found} bytes of memory is not one of a machine with {length}");
            return Err(VmError::BadSource { what });
        }
        let all = vec![
            Shown::new(STATE_IN, again(state.devices())?, Access::ReadOnly),
            Shown::new(MEMORY_IN, again(state.memory())?, Access::ReadOnly),
        ];
        let (vm, streams) = self.launch(&hardware, all, Sharing::State).await?;
        let load = Request::LoadSnapshot(SnapshotLoad::new(STATE_IN, MEMORY_IN).with_vsock(VSOCK));
        Ok(started(Self::told(vm, "restore", &[load]).await?, streams))
    }
}

fn started(vm: FirecrackerVm, streams: UnixStream) -> Started {
    let (reader, writer) = streams.into_split();
    Started { vm: Box::new(vm), reader: Box::pin(reader), writer: Box::pin(writer) }
}

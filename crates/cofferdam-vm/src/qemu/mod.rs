//! QEMU, with its smallest VM type.
//!
//! ```text
//! Qemu --fork, exec--> qemu-system (no files, sockets or network of its own: descriptors only)
//!   |--QMP over a socket pair--> stop, cont, device state; events
//!   |--a mapped file--> the VM's memory
//!   |--a socket pair--> virtio-serial port: the agent's streams
//!   '--a socket pair--> the serial console, with its tail retained
//! ```
//!
//! Kernel, initramfs and disks are opened by the supervisor and inherited as descriptors, so the VMM needs access to no
//! path but those of its own program. If root starts it, it runs as a user that no host uses. It always runs under
//! Landlock rules and without the host's network. It is killed with the process that started it.

mod arguments;
mod memory;
mod message;
mod pages;
mod qmp;
mod state;
mod vm;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::Access;
use cofferdam_image::{ImageError, TreeError, tool};
use cofferdam_linux::child::{self, Calls, Pages, Seclusion, Start};
use cofferdam_linux::clock;
use cofferdam_linux::programs;
use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::text::excerpt;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::bounds::{Enclosure, VmmLimits};
use crate::console_tail::ConsoleTail;
use crate::error::{Result, VmError, io};
use crate::kvm;
use crate::rules::{self, Opened};
use crate::users;
use crate::vmm::{
    ARCHITECTURE, Accelerator, Boot, Contents, Disk, Hardware, Origin, Started, VmDescription, VmState, Vmm,
};
use arguments::{Descriptors, LAYOUT, MACHINE, StartMode, arguments, memory_size};
use memory::Memory;
use pages::Owner;
use qmp::Qmp;
use vm::QemuVm;

/// The VMM's program, for [`ARCHITECTURE`].
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// Oldest supported version.
const OLDEST: (u32, u32) = (7, 2);
const OLDEST_TEXT: &str = "7.2";
/// Time for the program to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// Settings of glibc's allocator: a cache and an arena for each thread take half a mebibyte of each VMM, whose threads
/// hardly compete for them. Other C libraries ignore them.
const ALLOCATOR: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1");

/// Configuration of QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QemuConfig {
    /// Its program. Default: `qemu-system-…` in the standard directories.
    pub program: Option<PathBuf>,
    /// The accelerator.
    pub accelerator: Accelerator,
    /// QEMU's name of the CPU model, with its version; never `max` or `host`, whose meaning depends on the host.
    pub processor: String,
    /// Deadline for an answer.
    pub timeout: Duration,
}

impl Default for QemuConfig {
    fn default() -> Self {
        Self {
            program: None,
            accelerator: Accelerator::default(),
            processor: "Nehalem-v1".to_owned(),
            timeout: Duration::from_secs(30),
        }
    }
}

/// The VMM QEMU.
#[derive(Debug)]
pub struct Qemu {
    config: QemuConfig,
    known: OnceCell<Known>,
}

/// The program, and the version that it printed.
#[derive(Debug)]
struct Known {
    program: PathBuf,
    version: String,
}

impl Qemu {
    /// Creates it. Starts nothing before the first use.
    ///
    /// # Errors
    ///
    /// [`VmError::Invalid`] if the processor is not a single name, or one that differs between hosts.
    pub fn new(config: QemuConfig) -> Result<Self> {
        let name = &config.processor;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || ["max", "host"].contains(&&**name) {
            let what = format!("{:?} is not the name of a CPU model that is the same on every host", name);
            return Err(VmError::Invalid { what });
        }
        Ok(Self { config, known: OnceCell::new() })
    }

    /// Returns the configured program.
    fn named(&self) -> &Path {
        self.config.program.as_deref().unwrap_or(Path::new(PROGRAM))
    }

    /// Returns the located and checked program, once its version is known.
    fn program(&self) -> &Path {
        self.known.get().map_or_else(|| self.named(), |known| &known.program)
    }

    /// Returns the program and its version, which is queried once.
    async fn known(&self) -> Result<&Known> {
        let known = self.known.get_or_try_init(|| async {
            let program = programs::locate(self.named());
            if program.components().count() > 1 {
                match trust::check(&program, Secrecy::Public) {
                    Err(distrust) if distrust.is_missing() => return Err(VmError::MissingTool { tool: PROGRAM }),
                    checked => checked.map(drop)?,
                }
            } else if rustix::process::geteuid().is_root() {
                return Err(VmError::MissingTool { tool: PROGRAM });
            }
            // A plain name is found through PATH, which is the ordinary user's own choice.
            let command = Self::command(&program);
            let known = tokio::task::spawn_blocking(move || Ok(Known { version: version_of(command)?, program }));
            known.await.map_err(|_| broken("the version query was cancelled"))?
        });
        known.await
    }

    fn command(program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("LC_ALL", "C").env(ALLOCATOR.0, ALLOCATOR.1).current_dir("/").stdin(Stdio::null());
        command
    }
}

#[async_trait]
impl Vmm for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn runs_with(&self) -> String {
        match self.config.accelerator {
            Accelerator::Tcg => "QEMU emulates its instructions (tcg)".to_owned(),
            Accelerator::Kvm => "the processor runs its instructions (kvm)".to_owned(),
        }
    }

    fn kernel_arguments(&self) -> String {
        arguments::kernel_arguments(self.config.accelerator, clock::ticks_per_millisecond())
    }

    fn disk_name(&self, disk: &Disk, _: usize) -> String {
        format!("serial:{}", disk.name)
    }

    fn port_name(&self, port: &str) -> String {
        port.to_owned()
    }

    async fn settle(&self, _: &VmDescription) -> Result<()> {
        Ok(())
    }

    async fn version(&self) -> Result<String> {
        if std::env::consts::ARCH != ARCHITECTURE {
            // QEMU would run, and boot an agent for another architecture.
            return Err(broken(format!("VMs run only on {ARCHITECTURE}")));
        }
        Ok(self.known().await?.version.clone())
    }

    async fn start(&self, description: VmDescription) -> Result<Started> {
        let (hardware, boot) = description.into_parts();
        let memory = Memory::empty(memory_size(&hardware))?;
        let (vm, agent) = self.launch(&hardware, Some(&boot), memory).await?;
        Ok(started(vm, agent))
    }

    async fn origin(&self) -> Result<Origin> {
        let version = self.version().await?;
        let QemuConfig { accelerator, processor, .. } = &self.config;
        let (host, ticks_per_millisecond) = match accelerator {
            Accelerator::Tcg => (None, clock::ticks_per_millisecond()),
            Accelerator::Kvm => (Some(kvm::host_processor()), None),
        };
        Ok(Origin {
            vmm: self.name().to_owned(),
            version,
            vm_type: format!("{MACHINE},{LAYOUT} {ARCHITECTURE}"),
            accelerator: *accelerator,
            processor: processor.clone(),
            host,
            ticks_per_millisecond,
        })
    }

    async fn restore(&self, hardware: Hardware, state: &VmState) -> Result<Started> {
        let memory = Memory::of_state(state.memory(), memory_size(&hardware))?;
        let (vm, agent) = self.launch(&hardware, None, memory).await?;
        vm.load(state.devices(), self.config.timeout).await?;
        Ok(started(vm, agent))
    }
}

fn started(vm: QemuVm, agent: UnixStream) -> Started {
    let (reader, writer) = agent.into_split();
    Started { vm: Box::new(vm), reader: Box::pin(reader), writer: Box::pin(writer) }
}

impl Qemu {
    /// Starts a VMM, and waits for its greeting. Without boot files, the VM waits for a state.
    async fn launch(&self, hardware: &Hardware, boot: Option<&Boot>, memory: Memory) -> Result<(QemuVm, UnixStream)> {
        self.known().await?;
        let Channels { theirs, stderr, agent, qmp, console, errors } = Channels::open()?;
        let [agent_theirs, qmp_theirs, console_theirs] = [0, 1, 2].map(|at: usize| theirs[at].as_raw_fd());
        let mut keep: Vec<OwnedFd> = theirs.into_iter().collect();
        let mut take = |file: OwnedFd| {
            let number = file.as_raw_fd();
            keep.push(file);
            number
        };
        let open = |path: &Path| File::open(path).map_err(io("open", path));
        let copy = |file: &File| file.try_clone().map_err(io("copy a descriptor for", PROGRAM));
        let opened = match boot {
            Some(boot) => vec![open(&boot.kernel)?, open(&boot.initramfs)?],
            None => Vec::new(),
        };
        let kernel_arguments = self.kernel_arguments();
        let mode = match (boot, &*opened) {
            (Some(boot), [kernel, initramfs]) => {
                let [kernel, initramfs] = [take(copy(kernel)?.into()), take(copy(initramfs)?.into())];
                StartMode::Boot { boot, kernel_arguments: &kernel_arguments, kernel, initramfs }
            }
            _ => StartMode::State,
        };
        let mut disks = Vec::new();
        for disk in &hardware.disks {
            let file = match (&disk.contents, disk.access) {
                (Contents::Shared(path), Access::ReadOnly) => open(path)?,
                (Contents::Shared(_), _) => return Err(broken("a shared disk cannot be writable")),
                (Contents::Own(file), _) => copy(file)?,
            };
            disks.push(take(file.into()));
        }
        let descriptors = Descriptors {
            memory: take(copy(memory.file())?.into()),
            disks,
            agent: agent_theirs,
            qmp: qmp_theirs,
            console: console_theirs,
        };
        let mut command = Self::command(self.program());
        command.args(arguments(&self.config, &mode, hardware, &descriptors));
        command.stdout(Stdio::null()).stderr(Stdio::from(stderr));
        let read: Vec<&File> = opened.iter().collect();
        let opened = Opened { read: &read, ..Opened::default() };
        let rules = rules::of(self.program(), self.config.accelerator, &opened);
        let rules = rules.map_err(|error| rules::error(self.program(), error))?;
        let (user, vmm_limits) = (users::user(self.config.accelerator), VmmLimits::of(hardware, memory.sharing()));
        let started = tokio::task::spawn_blocking(move || {
            let enclosure = Enclosure::make(&vmm_limits, user.is_some());
            let (groups, limits) = (enclosure.entrances()?, enclosure.limits.clone());
            let confined = Start { keep, user, rules: Some(rules), seclusion: Seclusion::Apart, ..Start::default() };
            let start = Start { groups, limits, pages: Pages::Small, calls: Calls::Lone, ..confined };
            child::start(command, start).map(|child| (child, enclosure))
        });
        let started = started.await;
        let (child, enclosure) =
            started.map_err(|_| broken("its start was interrupted"))?.map_err(|error| match error.kind() {
                _ if child::lacks_namespaces(&error) => {
                    VmError::MissingBoundary { boundary: "namespaces of its own, which isolate it from the network" }
                }
                std::io::ErrorKind::NotFound => VmError::MissingTool { tool: PROGRAM },
                std::io::ErrorKind::PermissionDenied => {
                    VmError::NotExecutable { program: self.program().to_owned(), source: error }
                }
                _ => io("start", self.program())(error),
            })?;
        let output = (ConsoleTail::default(), ConsoleTail::default());
        tokio::spawn(output.0.clone().collect(console));
        tokio::spawn(output.1.clone().collect(errors));
        let owner = Owner { pid: child.id(), user };
        let vm = QemuVm::watch((child, enclosure), Qmp::begin(qmp, self.config.timeout), output, (memory, owner))?;
        // From here on, dropping the VM kills the process.
        vm.greet().await?;
        Ok((vm, agent))
    }
}

/// The connections of a VM: the supervisor's and the VMM's ends.
struct Channels {
    /// For the agent, QMP and the console.
    theirs: [OwnedFd; 3],
    stderr: OwnedFd,
    agent: UnixStream,
    qmp: UnixStream,
    console: UnixStream,
    errors: UnixStream,
}

impl Channels {
    fn open() -> Result<Self> {
        let pair = || {
            let (ours, theirs) = Socket::pair()?;
            ours.set_nonblocking(true)?;
            Ok((UnixStream::from_std(ours)?, OwnedFd::from(theirs)))
        };
        let pair = || pair().map_err(io("create a socket for", PROGRAM));
        let ((agent, one), (qmp, two), (console, three), (errors, stderr)) = (pair()?, pair()?, pair()?, pair()?);
        Ok(Self { theirs: [one, two, three], stderr, agent, qmp, console, errors })
    }
}

pub(crate) fn broken(what: impl Into<String>) -> VmError {
    VmError::Vmm { vmm: "qemu", what: what.into() }
}

/// Returns the version that a program prints.
fn version_of(mut command: Command) -> Result<String> {
    command.arg("--version");
    let finished = tool::finish(command, PROGRAM, VERSION_TIMEOUT).map_err(|error| match error {
        TreeError::MissingTool { tool } => VmError::MissingTool { tool },
        error => ImageError::from(error).into(),
    })?;
    parse_version(&finished.output)
}

/// Parses the output of `--version`, and checks that the version is supported.
fn parse_version(output: &str) -> Result<String> {
    let line = output.lines().next().unwrap_or_default();
    let version = line.strip_prefix("QEMU emulator version ").and_then(|rest| rest.split_whitespace().next());
    let Some(version) = version else {
        return Err(broken(format!("it prints no version, but '{}'", excerpt(line))));
    };
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST => Ok(version.to_owned()),
        (Some(Ok(_)), Some(Ok(_))) => {
            Err(VmError::OutdatedTool { tool: PROGRAM, found: version.to_owned(), needed: OLDEST_TEXT })
        }
        _ => Err(broken(format!("it prints no version, but '{}'", excerpt(line)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_old_ones_refused() {
        assert_eq!(parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright").unwrap(), "7.2.22");
        assert_eq!(parse_version("QEMU emulator version 10.0.2\n").unwrap(), "10.0.2");
        let old = parse_version("QEMU emulator version 6.2.0\n").unwrap_err();
        assert!(matches!(&old, VmError::OutdatedTool { found, .. } if found == "6.2.0"), "{old}");
        for odd in ["", "QEMU emulator version x.y", "GNU bash\u{1b}[2J"] {
            let error = parse_version(odd).unwrap_err().to_string();
            assert!(error.contains("no version") && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn processors_that_differ_from_host_to_host_are_refused() {
        for bad in ["max", "host", "", "Nehalem,+x", "a b"] {
            assert!(Qemu::new(QemuConfig { processor: bad.to_owned(), ..QemuConfig::default() }).is_err(), "{bad}");
        }
    }
}

//! The traits of virtual machine monitors (VMMs) and their VMs.
//!
//! ```text
//! VmDescription --Vmm::start--> running --pause--> paused --resume--> running
//!                                  |                  '--snapshot--> VmState --Vmm::restore--> paused, repeatable
//!                                  '--- kill, drop, guest's end ---> ended, with a reason; nothing left
//! ```
//!
//! A VMM knows nothing of sandboxes. It runs the VM that is described, connects one port of it with a pair of byte
//! streams, and reports its end.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Access, ByteSize};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::{Result, io};
use crate::sparse;

/// The processor architecture of all VMs: QEMU's smallest VM type, and all kernel arguments, are for it.
pub(crate) const ARCHITECTURE: &str = "x86_64";
/// Maximum size of a device state. Actual states have some tens of kilobytes.
pub(crate) const MAX_DEVICES: u64 = 16 << 20;

/// The execution mode of a VM's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// Emulation in software: works everywhere, many times slower.
    #[default]
    Tcg,
    /// Hardware virtualisation through the host's kernel.
    Kvm,
}

impl Accelerator {
    /// Returns the name in options and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }
}

/// The choice of the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// Firecracker if it is installed and works with hardware virtualisation, else QEMU.
    #[default]
    Auto,
    /// QEMU, regardless of the host.
    Qemu,
    /// Firecracker, or an error.
    Firecracker,
}

/// The choice of the [`Accelerator`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acceleration {
    /// KVM if it works on this host, else TCG.
    #[default]
    Auto,
    /// TCG, regardless of the host.
    Tcg,
    /// KVM, or an error.
    Kvm,
}

/// The location of a disk's bytes.
#[derive(Debug)]
pub enum Contents {
    /// A file that other VMs use as well, and that does not change.
    Shared(PathBuf),
    /// A file of this VM, which needs no name and is freed with its last descriptor.
    Own(File),
}

/// A disk of a VM.
#[derive(Debug)]
pub struct Disk {
    /// Its serial number, if the VMM supports these: lower-case letters, digits and `-`, at most 20.
    pub name: &'static str,
    /// Its bytes.
    pub contents: Contents,
    /// The VM's access to it.
    pub access: Access,
}

/// A description of a VM to start.
#[derive(Debug)]
pub struct VmDescription {
    /// The kernel.
    pub kernel: PathBuf,
    /// The kernel's initial file system.
    pub initramfs: PathBuf,
    /// Arguments for the kernel, besides those of [`Vmm::kernel_arguments`].
    pub command_line: String,
    /// Its memory size.
    pub memory: ByteSize,
    /// Its number of processors.
    pub processors: u32,
    /// Its disks, in order.
    pub disks: Vec<Disk>,
    /// The name of the port that is connected with the streams.
    pub port: &'static str,
}

impl VmDescription {
    /// Splits it into the hardware and the boot files: kernel, initramfs, command line.
    pub fn into_parts(self) -> (Hardware, Boot) {
        let Self { kernel, initramfs, command_line, memory, processors, disks, port } = self;
        (Hardware { memory, processors, disks, port }, Boot { kernel, initramfs, command_line })
    }
}

/// The hardware of a VM, which must be the same where its state is restored.
#[derive(Debug)]
pub struct Hardware {
    /// Its memory size.
    pub memory: ByteSize,
    /// Its number of processors.
    pub processors: u32,
    /// Its disks, in order.
    pub disks: Vec<Disk>,
    /// The name of the port that is connected with the streams.
    pub port: &'static str,
}

/// The boot files of a VM.
#[derive(Debug)]
pub struct Boot {
    /// The kernel.
    pub kernel: PathBuf,
    /// The kernel's initial file system.
    pub initramfs: PathBuf,
    /// Arguments for the kernel, besides those of [`Vmm::kernel_arguments`].
    pub command_line: String,
}

/// The complete state of a paused VM, except its disks. Cheap to clone. It is in unnamed files, which are freed with
/// the last clone and the last VM that was restored from it.
#[derive(Debug, Clone)]
pub struct VmState {
    memory: Arc<File>,
    devices: Arc<File>,
}

impl VmState {
    /// Creates it from files of `sparse::blank`, which it seals against changes.
    ///
    /// # Errors
    ///
    /// [`VmError::Io`](crate::VmError) if a file cannot be sealed, such as a named file.
    pub fn new(memory: File, devices: File) -> Result<Self> {
        sparse::seal(&memory).map_err(io("seal", "the memory of a VM"))?;
        sparse::seal(&devices).map_err(io("seal", "the state of a VM"))?;
        Ok(Self { memory: Arc::new(memory), devices: Arc::new(devices) })
    }

    /// Returns the VM's memory from its first byte to its last. Pages of zeros are holes.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Returns the VMM's serialized device state, in a format of its own. Small.
    pub fn devices(&self) -> &File {
        &self.devices
    }

    /// Returns the host memory that it takes, without holes.
    pub(crate) fn allocated(&self) -> Result<u64> {
        let of = |file: &File| sparse::allocated(file).map_err(io("inspect", "a snapshot"));
        Ok(of(&self.memory)?.saturating_add(of(&self.devices)?))
    }
}

/// The properties that a state depends on, besides the hardware: its VMM and its processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The VMM's name.
    #[serde(rename = "monitor")]
    pub vmm: String,
    /// Its version.
    pub version: String,
    /// The VMM's name for the VM type, and the processor architecture.
    #[serde(rename = "machine")]
    pub vm_type: String,
    /// The accelerator.
    pub accelerator: Accelerator,
    /// The VMM's name for the CPU model.
    pub processor: String,
    /// The host's processor, if the VM's instructions run on it directly.
    pub host: Option<String>,
    /// Frequency in kHz of the time-stamp counter that the kernel was configured with, if that is the host's.
    pub ticks_per_millisecond: Option<u64>,
}

/// The end of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The reason as a clause, such as "its kernel restarted".
    pub why: String,
    /// True if it ended as a VM does whose first process has ended, rather than by an action from outside.
    pub by_itself: bool,
}

/// A started VM, and the streams to its port.
pub struct Started {
    /// The VM.
    pub vm: Box<dyn Vm>,
    /// Bytes that the guest writes to the port.
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
    /// Bytes that the guest reads from the port. Dropping it closes the port inside.
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started").field("vm", &self.vm).finish_non_exhaustive()
    }
}

/// A virtual machine monitor.
#[async_trait]
pub trait Vmm: fmt::Debug + Send + Sync {
    /// Returns its name, for display.
    fn name(&self) -> &'static str;

    /// Returns the accelerator of its VMs and the reason for it, once it is chosen. A clause for display.
    fn runs_with(&self) -> String;

    /// Returns the kernel arguments that are required under this VMM, with a console.
    fn kernel_arguments(&self) -> String;

    /// Returns the name of a disk for the VM's init: `serial:NAME`, or the kernel's name for it.
    fn disk_name(&self, disk: &Disk, index: usize) -> String;

    /// Returns the name of a port for the VM's init: its name, or `vsock:NUMBER`.
    fn port_name(&self, port: &str) -> String;

    /// Makes all choices that depend on the host, for a VM that is complete but for its command line. Must be awaited
    /// before the names above are requested.
    ///
    /// # Behavior
    /// - Fails if no such VM can be started, with the remedy.
    async fn settle(&self, description: &VmDescription) -> Result<()>;

    /// Returns its version.
    ///
    /// # Behavior
    /// - Fails with [`VmError::MissingTool`](crate::VmError) if it is not installed, with `OutdatedTool` if it is too
    ///   old.
    /// - Starts no VM.
    async fn version(&self) -> Result<String>;

    /// Starts a VM. Needs a tokio runtime with time and IO.
    ///
    /// # Behavior
    /// - Returns as soon as the VM runs; the guest has not sent anything yet.
    /// - The VM ends with this process, however that ends.
    /// - The VMM has access only to those resources of the host that the VM is described with.
    async fn start(&self, description: VmDescription) -> Result<Started>;

    /// Returns the properties of the states that it saves now, and can restore.
    ///
    /// # Behavior
    /// - Fails as [`Self::version`].
    async fn origin(&self) -> Result<Origin>;

    /// Restores a VM from a state. Needs a tokio runtime with time and IO.
    ///
    /// # Behavior
    /// - `hardware` must equal that of the saved VM, with disks whose contents are those of the state. The caller has
    ///   checked the [`Origin`] before.
    /// - Returns when the VMM has everything that it needs. The VM is paused until [`Vm::resume`].
    /// - Memory is mapped from the state on the first access, and copied on the first write: many VMs share one state,
    ///   none changes it, and none sees the writes of another.
    /// - An invalid state is an error with its reason; nothing is left then.
    /// - The VMM's end and isolation are as in [`Self::start`].
    async fn restore(&self, hardware: Hardware, state: &VmState) -> Result<Started>;
}

/// A running VM. Dropping it kills it.
#[async_trait]
pub trait Vm: fmt::Debug + Send + Sync {
    /// Stops its processors. Nothing in it changes until [`Self::resume`]. Idempotent.
    async fn pause(&self) -> Result<()>;

    /// Continues its processors. Idempotent.
    async fn resume(&self) -> Result<()>;

    /// Saves its state, except its disks. It must be paused, and its port must not be written to meanwhile.
    ///
    /// # Behavior
    /// - It is paused before and after, even if saving fails, and can be resumed or saved again.
    /// - Fails if the VM is not paused.
    /// - The state of a restored VM is as complete as that of a booted VM.
    /// - Disks are flushed by the pause: a copy of them from before the resume belongs to the state.
    /// - Memory that was never written to takes no space. More than `max` bytes of memory in use is an error.
    /// - VMM and VM may be hostile: their answers are bounded in size and time.
    async fn snapshot(&self, max: ByteSize) -> Result<VmState>;

    /// Waits until it has ended, and returns the reason.
    async fn ended(&self) -> Ended;

    /// Returns the reason for its end, if it has ended. Cheap: it makes no request.
    fn is_ended(&self) -> Option<Ended>;

    /// Returns the end of its console output, which is untrusted.
    fn console(&self) -> String;

    /// Returns the host resource limits of its VMM, as read back. A clause for display.
    fn vmm_limits(&self) -> String;

    /// Returns the CPU microseconds of its VMM, including the guest's, as the host's kernel counts them; `None` once it
    /// has ended.
    fn cpu_micros(&self) -> Option<u64>;

    /// Kills it.
    ///
    /// # Behavior
    /// - When it returns, no process, file, control group or socket of the VM is left.
    /// - Idempotent.
    async fn kill(&self) -> Result<()>;
}

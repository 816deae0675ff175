//! What every monitor of virtual machines offers, whichever it is.
//!
//! ```text
//! Machine --Vmm::start--> running --pause--> paused --resume--> running
//!                            |                  '--snapshot--> MachineState --Vmm::restore--> paused, any number of times
//!                            '--- kill, drop, guest's end ---> ended, with a reason; nothing left
//! ```
//!
//! A monitor knows nothing of sandboxes. It makes the machine that is described, connects one port of it with a pair of
//! byte streams, and says when it ended.

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

/// What runs the instructions of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// A translator in software: works everywhere, many times slower.
    #[default]
    Tcg,
    /// The processor itself, by the host's kernel.
    Kvm,
}

impl Accelerator {
    /// The word used in options and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }
}

/// Which monitor makes machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// Firecracker where it is there and hardware virtualisation was tried with it and works, else QEMU.
    #[default]
    Auto,
    /// QEMU, whatever else the host has.
    Qemu,
    /// Firecracker, or no machine.
    Firecracker,
}

/// How [`Accelerator`] is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acceleration {
    /// The processor where that was tried and works, else the translator.
    #[default]
    Auto,
    /// The translator, whatever the host offers.
    Tcg,
    /// The processor, or no machine.
    Kvm,
}

/// Where the bytes of a disk are.
#[derive(Debug)]
pub enum Contents {
    /// In a file that others use, too, and that nobody changes.
    Shared(PathBuf),
    /// In a file of the machine's own, which needs no name and is gone with its last descriptor.
    Own(File),
}

/// A disk of a machine.
#[derive(Debug)]
pub struct Disk {
    /// Its serial number, where the monitor gives disks any: lower-case letters, digits and `-`, at most 20.
    pub name: &'static str,
    /// Its bytes.
    pub contents: Contents,
    /// Whether the machine can write to it.
    pub access: Access,
}

/// A machine to be made.
#[derive(Debug)]
pub struct Machine {
    /// The kernel.
    pub kernel: PathBuf,
    /// What the kernel finds before it has a disk.
    pub initramfs: PathBuf,
    /// Words for the kernel's command line, besides those of [`Vmm::kernel_words`].
    pub command_line: String,
    /// All of its memory.
    pub memory: ByteSize,
    /// Its processors.
    pub processors: u32,
    /// Its disks, in order.
    pub disks: Vec<Disk>,
    /// The name of the port that is connected with the streams.
    pub port: &'static str,
}

impl Machine {
    /// What it is made of, and what runs in it first: kernel, initramfs, command line.
    pub fn into_parts(self) -> (Hardware, Boot) {
        let Self { kernel, initramfs, command_line, memory, processors, disks, port } = self;
        (Hardware { memory, processors, disks, port }, Boot { kernel, initramfs, command_line })
    }
}

/// What a machine is made of, whatever runs in it: what has to be the same where a state is to go on.
#[derive(Debug)]
pub struct Hardware {
    /// All of its memory.
    pub memory: ByteSize,
    /// Its processors.
    pub processors: u32,
    /// Its disks, in order.
    pub disks: Vec<Disk>,
    /// The name of the port that is connected with the streams.
    pub port: &'static str,
}

/// What runs first in a machine.
#[derive(Debug)]
pub struct Boot {
    /// The kernel.
    pub kernel: PathBuf,
    /// What the kernel finds before it has a disk.
    pub initramfs: PathBuf,
    /// Words for the kernel's command line, besides those of [`Vmm::kernel_words`].
    pub command_line: String,
}

/// All of a machine that stood still, but its disks. Cheap to clone. It lies in files without names, which are gone with the
/// last clone and the last machine that came from it.
#[derive(Debug, Clone)]
pub struct MachineState {
    memory: Arc<File>,
    devices: Arc<File>,
}

impl MachineState {
    /// Of files of `sparse::blank`, which nobody can change from here on.
    ///
    /// # Errors
    ///
    /// [`VmError::Io`](crate::VmError) for files that can still be changed, such as those with names.
    pub fn new(memory: File, devices: File) -> Result<Self> {
        sparse::seal(&memory).map_err(io("close", "the memory of a machine"))?;
        sparse::seal(&devices).map_err(io("close", "the state of a machine"))?;
        Ok(Self { memory: Arc::new(memory), devices: Arc::new(devices) })
    }

    /// The machine's memory from its first byte to its last. Pages of zeros are holes.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// What the monitor wrote down of everything else, in its own form. Small.
    pub fn devices(&self) -> &File {
        &self.devices
    }

    /// What it takes of the host's memory, without holes.
    pub(crate) fn allocated(&self) -> Result<u64> {
        let of = |file: &File| sparse::allocated(file).map_err(io("look at", "a snapshot"));
        Ok(of(&self.memory)?.saturating_add(of(&self.devices)?))
    }
}

/// What a state depends on besides the machine's parts: who made it, and for which processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The monitor's name.
    pub monitor: String,
    /// Its version.
    pub version: String,
    /// The kind of machine, by the monitor's name for it, and the kind of processor that it is made of.
    pub machine: String,
    /// What runs its instructions.
    pub accelerator: Accelerator,
    /// The processor that it has, by the monitor's name for it.
    pub processor: String,
    /// The host's processor, where the machine's instructions run on that.
    pub host: Option<String>,
    /// Thousands of ticks a second of the counter that its kernel was told of, where that is the host's.
    pub ticks_per_millisecond: Option<u64>,
}

/// How a machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// As a clause, such as "its kernel restarted".
    pub why: String,
    /// Whether it ended as machines do whose first process has ended, rather than by somebody outside.
    pub by_itself: bool,
}

/// A machine that was started, and the streams to the port in it.
pub struct Started {
    /// The machine.
    pub vm: Box<dyn Vm>,
    /// What is written to the port inside.
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
    /// What is read from the port inside. When it is dropped, the port inside is at its end.
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started").field("vm", &self.vm).finish_non_exhaustive()
    }
}

/// A monitor that makes machines.
#[async_trait]
pub trait Vmm: fmt::Debug + Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// What runs the instructions of its machines, and why, as far as that was settled. A clause for people.
    fn runs_with(&self) -> String;

    /// Words that kernels need on their command line to run under it, with a console.
    fn kernel_words(&self) -> String;

    /// What the kernel's first program knows a disk by: `serial:NAME`, or the kernel's own name for it.
    fn disk_word(&self, disk: &Disk, place: usize) -> String;

    /// What the kernel's first program knows a machine's port by: its name, or `vsock:NUMBER`.
    fn port_word(&self, port: &str) -> String;

    /// Settles what depends on the host, with a machine of which all is known but its command line. To be awaited before the
    /// words above are asked for.
    ///
    /// # Behavior
    /// - Fails where no machine can be made as it was asked for, with what to do about it.
    async fn settle(&self, machine: &Machine) -> Result<()>;

    /// Which version it is.
    ///
    /// # Behavior
    /// - Fails with [`VmError::MissingTool`](crate::VmError) when it is not there, with `OldTool` when it is too old.
    /// - Starts no machine.
    async fn version(&self) -> Result<String>;

    /// Starts a machine. Needs a tokio runtime with time and IO.
    ///
    /// # Behavior
    /// - Returns as soon as the machine runs; nobody in it has said anything yet.
    /// - The machine ends with this process, however that ends.
    /// - The monitor can reach nothing of the host but what the machine is described with.
    async fn start(&self, machine: Machine) -> Result<Started>;

    /// What states depend on that it takes now, and that it can go on from.
    ///
    /// # Behavior
    /// - Fails as [`Self::version`].
    async fn origin(&self) -> Result<Origin>;

    /// Makes a machine that goes on where another one stood when its state was taken. Needs a tokio runtime with time and
    /// IO.
    ///
    /// # Behavior
    /// - `hardware` must be what that machine had, with disks whose contents are those of that moment. Whether the
    ///   [`Origin`] is right has been looked at before.
    /// - Returns when all is there that the monitor needs. The machine is paused until [`Vm::resume`].
    /// - Memory is mapped from the state when it is first touched, and copied when it is first changed: many machines share
    ///   one state, none changes it, and none sees what another one does.
    /// - A state that the monitor does not understand is an error with its reason; nothing is left then.
    /// - What is said of [`Self::start`] about the monitor's end and its walls holds.
    async fn restore(&self, hardware: Hardware, state: &MachineState) -> Result<Started>;
}

/// A running machine. Dropping it ends it.
#[async_trait]
pub trait Vm: fmt::Debug + Send + Sync {
    /// Stops its processors. Nothing in it happens until [`Self::resume`]. Idempotent.
    async fn pause(&self) -> Result<()>;

    /// Lets its processors go on. Idempotent.
    async fn resume(&self) -> Result<()>;

    /// Writes down all of it but its disks. It must be paused, and nobody may write to its port meanwhile.
    ///
    /// # Behavior
    /// - It is paused before and after, whatever comes of it, and can go on or be written down again.
    /// - Fails on a machine that is not paused.
    /// - What is written down of a machine that was restored is as good as of one that was booted.
    /// - Disks are flushed when it is paused: a copy of them that is made before it goes on belongs to the state.
    /// - No part of memory that was never written to takes room. More than `most` bytes of memory in use is an error.
    /// - Monitor and machine may be hostile: what they say is bounded in size and time.
    async fn snapshot(&self, most: ByteSize) -> Result<MachineState>;

    /// Waits until it has ended, and says how.
    async fn ended(&self) -> Ended;

    /// How it ended, if it has. Cheap: it asks nobody.
    fn is_ended(&self) -> Option<Ended>;

    /// The end of what it said on its console. It may be anything.
    fn console(&self) -> String;

    /// What bounds its monitor from outside, as it was read back. A clause for people.
    fn kept(&self) -> String;

    /// CPU microseconds that its monitor has used, the guest's included, as the host's kernel counts them; `None` once it
    /// has ended.
    fn cpu_micros(&self) -> Option<u64>;

    /// Ends it at once.
    ///
    /// # Behavior
    /// - When it returns, no process, file, control group or socket of the machine is left.
    /// - Idempotent.
    async fn kill(&self) -> Result<()>;
}

//! What every monitor of virtual machines offers, whichever it is.
//!
//! ```text
//! Machine --Vmm::start--> running --pause--> paused --resume--> running
//!                            '--- kill, drop, guest's end ---> ended, with a reason; nothing left
//! ```
//!
//! A monitor knows nothing of sandboxes. It makes the machine that is described, connects one port of it with a pair of
//! byte streams, and says when it ended.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::pin::Pin;

use async_trait::async_trait;
use cofferdam_contract::{Access, ByteSize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::Result;

/// What runs the instructions of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
}

/// A running machine. Dropping it ends it.
#[async_trait]
pub trait Vm: fmt::Debug + Send + Sync {
    /// Stops its processors. Nothing in it happens until [`Self::resume`]. Idempotent.
    async fn pause(&self) -> Result<()>;

    /// Lets its processors go on. Idempotent.
    async fn resume(&self) -> Result<()>;

    /// Waits until it has ended, and says how.
    async fn ended(&self) -> Ended;

    /// How it ended, if it has. Cheap: it asks nobody.
    fn is_ended(&self) -> Option<Ended>;

    /// The end of what it said on its console. It may be anything.
    fn console(&self) -> String;

    /// What bounds its monitor from outside, as it was read back. A clause for people.
    fn kept(&self) -> String;

    /// Ends it at once.
    ///
    /// # Behavior
    /// - When it returns, no process, file, control group or socket of the machine is left.
    /// - Idempotent.
    async fn kill(&self) -> Result<()>;
}

//! The traits a backend implements.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use crate::{
    ByteSize, Chunk, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, Exit, FileReader, OutputEvent, OutputStream,
    Posture, Result, SandboxId, SandboxPath, Snapshot, Spec, Warm, after_close,
};

/// What a backend that cannot seek reads and drops at most, before the byte that a reading begins at.
pub const MAX_SKIPPED: ByteSize = ByteSize::from_mebibytes(64);

/// How thick the wall is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// No wall at all; for tests.
    Simulated,
    /// Level 1: WebAssembly inside the caller's process.
    Wasm,
    /// Level 2: a process behind namespaces, filters and control groups.
    Process,
    /// Between 2 and 3: a container of a container engine.
    Container,
    /// Level 3: a virtual machine with its own kernel.
    Vm,
}

impl Level {
    /// The word used in options and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Wasm => "wasm",
            Self::Process => "process",
            Self::Container => "container",
            Self::Vm => "vm",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "simulated" => Ok(Self::Simulated),
            "1" | "wasm" => Ok(Self::Wasm),
            "2" | "process" => Ok(Self::Process),
            "container" => Ok(Self::Container),
            "3" | "vm" => Ok(Self::Vm),
            _ => Err(format!("'{text}' is not a level; write wasm (1), process (2), container or vm (3)")),
        }
    }
}

/// Something a backend can do beyond running a command. What is not declared must answer `Unsupported`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Capability {
    /// Several execs in one sandbox, also at once.
    MultipleExecs,
    /// Standard input as a stream.
    StreamingStdin,
    /// A terminal, with resize.
    Terminal,
    /// Reading, writing, listing and removing files of the workspace.
    Files,
    /// A host directory as the workspace.
    HostWorkspace,
    /// Another root file system from a directory.
    RootDirectory,
    /// Another root file system from an image with a name: of a container engine, or of the backend's own.
    Image,
    /// [`Sandbox::snapshot`] and [`Backend::restore`].
    Snapshot,
    /// [`Sandbox::fork`].
    Fork,
    /// [`Sandbox::pause`] and [`Sandbox::resume`].
    Pause,
    /// [`Backend::warm`].
    Warm,
    /// [`crate::NetworkPolicy::Allow`].
    NetworkAllowlist,
    /// [`crate::Command::Script`] and [`crate::Command::Shell`] run programs of a Unix-like root file system.
    UnixPrograms,
}

/// What a backend can do.
pub type Capabilities = BTreeSet<Capability>;

/// An exec that has ended, with its output collected.
#[derive(Debug, Clone, PartialEq)]
pub struct Completed {
    /// How it ended.
    pub exit: Exit,
    /// Standard output; in a terminal, everything.
    pub stdout: Bytes,
    /// Standard error.
    pub stderr: Bytes,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SandboxUsage {
    /// CPU seconds used since it was made; `None` where the backend cannot tell.
    pub cpu_seconds: Option<f64>,
    /// Memory in use, in bytes; `None` where the backend cannot tell.
    pub memory_bytes: Option<u64>,
    /// The most memory used at once, in bytes; `None` where the backend cannot tell.
    pub peak_memory_bytes: Option<u64>,
    /// Processes and threads alive; `None` where the backend cannot tell.
    pub processes: Option<u32>,
    /// Bytes stored in the sandbox's own writable directories; `None` where the backend cannot tell.
    pub disk_bytes: Option<u64>,
}

/// Makes sandboxes of one kind.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// The name that configuration uses, such as `process`.
    fn name(&self) -> &str;

    /// How thick its wall is.
    fn level(&self) -> Level;

    /// What it can do on this host.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox.
    ///
    /// # Behavior
    /// - Fails with `WeakerThanAsked` and leaves nothing behind when the posture falls short of the spec in a
    ///   protection that the spec does not name in `allow_weaker`.
    /// - Fails with `Unsupported` for a setting the backend does not have, never ignores it.
    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Makes a sandbox for a single command and starts that: what [`Self::create`] and [`Sandbox::start`] do one after
    /// the other, where a backend knows no shorter way.
    ///
    /// # Behavior
    /// - The posture is held against the spec as by [`Self::create`].
    /// - Where the command cannot be started, nothing of the sandbox is left.
    /// - The sandbox may end as soon as its command has. It must still be closed.
    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        let sandbox = self.create(spec).await?;
        match sandbox.start(request).await {
            Ok(handle) => Ok((sandbox, handle)),
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    }

    /// Makes a sandbox, runs one command in it, closes it: the one-shot call.
    ///
    /// # Behavior
    /// - The sandbox is closed, and nothing of it left, whether or not the command could be started.
    /// - Where the command and the close both fail, the error is the command's, with the close's as context.
    /// - Output is collected without loss up to the request's `max_output`.
    async fn run(&self, spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        request.validate()?;
        let sandbox = self.create(spec).await?;
        let result = sandbox.exec(request).await;
        let posture = sandbox.posture().clone();
        after_close(result.map(|completed| (completed, posture)), sandbox.close().await)
    }

    /// Makes a sandbox from a snapshot of this backend, with the limits and policy of `spec`.
    ///
    /// # Behavior
    /// - Answers `Unsupported` unless [`Capability::Snapshot`] is declared.
    /// - Refuses another backend's snapshot with `InvalidInput`.
    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Makes a sandbox ahead of its request, for requests like `spec`, its template.
    ///
    /// # Behavior
    /// - Answers `Unsupported` unless [`Capability::Warm`] is declared.
    /// - Refuses a template that [`Self::create`] would refuse, with the same kind of error, and leaves nothing behind.
    /// - Runs no program of any request, and shares no file with any other sandbox.
    async fn warm(&self, spec: Spec) -> Result<Box<dyn Warm>>;
}

/// One live enclosure. Dropping the last reference closes it.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Its name.
    fn id(&self) -> &SandboxId;

    /// What it was made from.
    fn spec(&self) -> &Spec;

    /// What is really enforced.
    fn posture(&self) -> &Posture;

    /// Starts a command.
    ///
    /// # Behavior
    /// - Fails with `NotFound` or `NotExecutable` when the program cannot be started.
    /// - After the time allowed the process tree is killed; the exit has code -1 and `timed_out`.
    /// - Execs started at once do not see each other's output, input or end.
    async fn start(&self, request: ExecRequest) -> Result<ExecHandle>;

    /// Runs a command and collects its output, without loss up to the request's `max_output`.
    async fn exec(&self, request: ExecRequest) -> Result<Completed> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        collect(self.start(request).await?).await
    }

    /// Opens a plain file of the workspace for reading.
    ///
    /// # Behavior
    /// - Symlinks are followed only inside the workspace; one that leads outside is `PathEscape`.
    /// - A fifo, socket, device or directory is refused with `Conflict` and never blocks.
    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader>;

    /// Opens a plain file of the workspace for reading from the byte `offset` on. A shorter file is empty there.
    ///
    /// # Behavior
    /// - The same rules for symlinks and special files as [`Self::read_file`].
    /// - A backend that can seek does. One that cannot reads and drops what comes before, as it does here, and answers
    ///   `ResourceExhausted` beyond [`MAX_SKIPPED`]: a sparse file of any length costs no more than that.
    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        if offset > MAX_SKIPPED.as_bytes() {
            let message = format!("this backend reads files from a byte up to {MAX_SKIPPED} only");
            return Err(Error::new(ErrorKind::ResourceExhausted, "read_file", message)
                .with_context("path", path.to_string())
                .with_remedy("copy the part with a command, such as tail -c, and read that"));
        }
        let mut reader = self.read_file(path).await?;
        let skipped = tokio::io::copy(&mut (&mut reader).take(offset), &mut tokio::io::sink()).await;
        skipped.map_err(|error| {
            Error::new(ErrorKind::Io, "read_file", "cannot read the file")
                .with_context("path", path.to_string())
                .with_source(error)
        })?;
        Ok(reader)
    }

    /// Makes or replaces a plain file from `contents`, with the directories above it; gives the bytes written.
    ///
    /// # Behavior
    /// - The same rules for symlinks and special files as [`Self::read_file`].
    /// - The file appears whole or not at all. The disk limit holds: beyond it the answer is `ResourceExhausted`.
    /// - A private workspace that code may only read can be filled. In a directory of the host that was lent to be read
    ///   only nothing is made or replaced: the answer is `Denied`.
    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64>;

    /// Lists a directory, sorted by name, at most 100,000 entries (`ResourceExhausted` beyond).
    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>>;

    /// Removes a file, a link (not its target) or a directory with all below it.
    ///
    /// # Behavior
    /// - From a directory of the host that was lent to be read only nothing is removed: the answer is `Denied`.
    async fn remove(&self, path: &SandboxPath) -> Result<()>;

    /// Freezes the sandbox's state; `Unsupported` unless [`Capability::Snapshot`] is declared.
    async fn snapshot(&self) -> Result<Snapshot>;

    /// Makes an independent copy that goes on from this state; `Unsupported` unless [`Capability::Fork`] is declared.
    async fn fork(&self) -> Result<Arc<dyn Sandbox>>;

    /// Stops every program in the sandbox where it stands, until [`Self::resume`]. Idempotent.
    ///
    /// # Behavior
    /// - Answers `Unsupported` unless [`Capability::Pause`] is declared.
    /// - Programs make no progress, and the time that their execs may take stands still.
    /// - What is asked of an exec meanwhile (input, a cancel, the drop of its handle) takes effect when it goes on.
    /// - Every call but `resume`, `usage` and `close` answers `Conflict`; `close` ends a paused sandbox as any other. A
    ///   backend that can do so may take snapshots of a paused sandbox, and fork it: the copy is not paused.
    async fn pause(&self) -> Result<()>;

    /// Lets programs go on where they stood. Idempotent; nothing happens to a sandbox that is not paused.
    async fn resume(&self) -> Result<()>;

    /// What the sandbox uses now.
    async fn usage(&self) -> Result<SandboxUsage>;

    /// Ends every exec and frees everything: processes, mounts, control groups, directories. Idempotent; returns when
    /// nothing is left.
    async fn close(&self) -> Result<()>;
}

impl dyn Sandbox {
    /// Reads a whole file of at most `limit` bytes.
    pub async fn read_file_to_end(&self, path: &SandboxPath, limit: ByteSize) -> Result<Vec<u8>> {
        use tokio::io::AsyncReadExt;
        let reader = self.read_file(path).await?;
        let mut data = Vec::new();
        reader
            .take(limit.as_bytes().saturating_add(1))
            .read_to_end(&mut data)
            .await
            .map_err(|error| crate::Error::new(crate::ErrorKind::Io, "read_file", "cannot read").with_source(error))?;
        if data.len() as u64 > limit.as_bytes() {
            return Err(crate::Error::new(
                crate::ErrorKind::ResourceExhausted,
                "read_file",
                format!("the file is larger than {limit}"),
            ));
        }
        Ok(data)
    }

    /// Writes a whole file from memory.
    pub async fn write_bytes(&self, path: &SandboxPath, contents: impl Into<Bytes>) -> Result<u64> {
        self.write_file(path, Box::new(std::io::Cursor::new(contents.into()))).await
    }
}

/// Collects an exec's output and exit. What the ring could not hold until it was read counts as truncated. Dropping the
/// future drops the handle, if it was given away.
pub async fn collect(handle: impl Borrow<ExecHandle> + Send) -> Result<Completed> {
    let handle = handle.borrow();
    let mut output = handle.output();
    let (mut stdout, mut stderr, mut lost) = (BytesMut::new(), BytesMut::new(), false);
    while let Some(event) = output.next().await {
        match event {
            OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data }) => stdout.extend_from_slice(&data),
            OutputEvent::Chunk(Chunk { stream: OutputStream::Stderr, data }) => stderr.extend_from_slice(&data),
            OutputEvent::Lost { .. } => lost = true,
        }
    }
    let mut exit = handle.exit().await?;
    exit.truncated |= lost;
    Ok(Completed { exit, stdout: stdout.freeze(), stderr: stderr.freeze() })
}

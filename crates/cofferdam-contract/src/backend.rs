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
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::{
    ByteSize, Chunk, CopyOut, CopyReport, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, Exit, FileReader,
    NetworkDenial, NetworkEvent, NetworkPolicy, NetworkUsage, NewEntry, OutputEvent, OutputStream, Posture,
    PreparedSandbox, Result, SandboxId, SandboxPath, Snapshot, Spec, WatchEvents, WatchOptions, after_close, copy,
};

/// The most bytes that a backend which cannot seek reads and discards before the offset of a read: 64 MiB.
pub const MAX_SKIPPED: ByteSize = ByteSize::from_mebibytes(64);

/// The isolation level of a backend, ordered from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// No isolation; for tests only.
    Simulated,
    /// Level 1: a WebAssembly runtime inside the caller's process.
    Wasm,
    /// Level 2: a process confined by namespaces, system-call filters and cgroups.
    Process,
    /// Between levels 2 and 3: a container of a container engine.
    Container,
    /// Level 3: a virtual machine with its own kernel.
    Vm,
}

impl Level {
    /// Returns the level's name in options and JSON, such as `process`.
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
            _ => Err(format!("'{text}' is not a level; use wasm (1), process (2), container or vm (3)")),
        }
    }
}

/// An optional feature of a backend. Operations of a feature that is not declared fail with `Unsupported`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Capability {
    /// Several execs in one sandbox, including concurrent ones.
    MultipleExecs,
    /// Standard input as a stream.
    StreamingStdin,
    /// A terminal, with resize.
    Terminal,
    /// Reading, writing, listing, copying and removing files of the workspace.
    Files,
    /// A host directory as the workspace.
    HostWorkspace,
    /// [`crate::Workspace::CopyOnWrite`] and [`Sandbox::changes`].
    CopyOnWrite,
    /// [`crate::Mount`]s of memory, and of host files and directories, read-only or writable.
    Mounts,
    /// [`crate::MountAccess::CopyOnWrite`].
    CopyOnWriteMounts,
    /// [`crate::Mount`]s of disks.
    DiskMounts,
    /// A directory of the host as the root file system.
    RootDirectory,
    /// An image as the root file system: of a container engine, or of the backend itself.
    Image,
    /// [`Sandbox::snapshot`] and [`Backend::restore`].
    Snapshot,
    /// [`Sandbox::fork`].
    Fork,
    /// [`Sandbox::pause`] and [`Sandbox::resume`].
    Pause,
    /// [`Backend::prepare`].
    Warm,
    /// [`crate::NetworkPolicy::Allow`].
    NetworkAllowlist,
    /// [`Sandbox::connect`].
    Connect,
    /// [`Sandbox::watch`].
    Watch,
    /// Programs of a Unix-like root file system, run by [`crate::Command::Script`] and [`crate::Command::Shell`].
    UnixPrograms,
}

/// The optional features of a backend.
pub type Capabilities = BTreeSet<Capability>;

/// The result of an exec that has ended, with its collected output.
#[derive(Debug, Clone, PartialEq)]
pub struct Completed {
    /// Exit status and resource usage.
    pub exit: Exit,
    /// Standard output. With a terminal, standard output and standard error together.
    pub stdout: Bytes,
    /// Standard error. Empty with a terminal.
    pub stderr: Bytes,
}

/// The current resource usage of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SandboxUsage {
    /// CPU seconds used since creation; `None` if the backend cannot measure it.
    pub cpu_seconds: Option<f64>,
    /// Memory in use, in bytes; `None` if the backend cannot measure it.
    pub memory_bytes: Option<u64>,
    /// Peak memory use, in bytes; `None` if the backend cannot measure it.
    pub peak_memory_bytes: Option<u64>,
    /// Number of live processes and threads; `None` if the backend cannot measure it.
    pub processes: Option<u32>,
    /// Bytes stored in the sandbox's own writable directories; `None` if the backend cannot measure it.
    pub disk_bytes: Option<u64>,
}

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to a port of a sandbox.
pub type Connection = Box<dyn Duplex>;

/// A factory of sandboxes of one kind.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name used in configuration, such as `process`.
    fn name(&self) -> &str;

    /// Returns the isolation level.
    fn level(&self) -> Level;

    /// Returns the optional features that are available on this host.
    fn capabilities(&self) -> Capabilities;

    /// Creates a sandbox.
    ///
    /// # Errors
    /// - `WeakerThanRequired` if a protection of the posture falls short of the spec and the spec does not list it in
    ///   `allow_weaker`. Nothing is left behind.
    /// - `Unsupported` for a setting that the backend does not have. A setting is never ignored.
    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Creates a sandbox for a single command and starts the command. By default this calls [`Self::create`] and then
    /// [`Sandbox::start`]; a backend overrides it if it has a shorter way.
    ///
    /// # Behavior
    /// - The posture is checked against the spec as in [`Self::create`].
    /// - If the command cannot be started, nothing of the sandbox is left.
    /// - The sandbox may end as soon as its command has ended. The caller must still close it.
    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        self.create(spec).await?.start_or_close(request).await
    }

    /// Creates a sandbox, runs one command in it and closes it. By default this calls [`Self::start_one`].
    ///
    /// # Behavior
    /// - The sandbox is closed and nothing of it is left, even if the command cannot be started.
    /// - If both the command and the close fail, the command's error is returned, with the close's error as context.
    /// - Output is collected without loss up to the request's `max_output`.
    async fn run(&self, spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        run_one(self, spec, request).await
    }

    /// Creates a sandbox from a snapshot of this backend, with the limits and policy of `spec`.
    ///
    /// # Behavior
    /// - A snapshot of one tenant is refused to another. [`Spec::check_tenant`] compares them.
    ///
    /// # Errors
    /// - `Unsupported` unless [`Capability::Snapshot`] is declared.
    /// - `InvalidInput` for a snapshot of another backend.
    /// - `Denied` for a snapshot of another tenant.
    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>>;

    /// Prepares a sandbox before its request arrives. `spec` is the template that later requests should resemble.
    ///
    /// # Behavior
    /// - Fails with `Unsupported` unless [`Capability::Warm`] is declared.
    /// - Rejects a template that [`Self::create`] would reject, with the same kind of error, and leaves nothing behind.
    /// - Runs no program of a request, and shares no file with any other sandbox.
    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>>;
}

/// Runs one command as [`Backend::run`] does.
pub(crate) async fn run_one<B: Backend + ?Sized>(
    backend: &B,
    spec: Spec,
    request: ExecRequest,
) -> Result<(Completed, Posture)> {
    let request = request.to_builder().output_buffer(request.max_output()).build()?;
    let (sandbox, handle) = backend.start_one(spec, request).await?;
    let completed = collect(handle).await;
    let posture = sandbox.posture().clone();
    after_close(completed.map(|completed| (completed, posture)), sandbox.close().await)
}

/// The changes of a copy-on-write workspace.
pub struct WorkspaceChanges {
    /// The layer.
    pub layer: FileReader,
    /// Printable paths of the first files that are missing in the layer or incomplete, with the reason.
    pub skipped: Vec<String>,
    /// The number of such files.
    pub skipped_count: usize,
}

/// A live sandbox. Dropping the last reference closes it.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Returns the sandbox's id.
    fn id(&self) -> &SandboxId;

    /// Returns the spec from which the sandbox was created.
    fn spec(&self) -> &Spec;

    /// Returns the protections that are enforced for this sandbox.
    fn posture(&self) -> &Posture;

    /// Returns what was refused on the network so far, each kind once.
    fn network_denials(&self) -> Vec<NetworkDenial> {
        Vec::new()
    }

    /// Returns what the sandbox has used of its network. `None` without a network policy, and for backends that do not
    /// count it.
    fn network_usage(&self) -> Option<NetworkUsage> {
        None
    }

    /// Returns a receiver of an event for each connection and request of the network policy from now on. `None` without
    /// a policy, and for backends without events. A reader that is too slow loses the oldest events.
    fn network_events(&self) -> Option<tokio::sync::broadcast::Receiver<NetworkEvent>> {
        None
    }

    /// Returns the network policy in force. It is that of the spec until it is replaced.
    fn network_policy(&self) -> NetworkPolicy {
        self.spec().network().clone()
    }

    /// Replaces the network policy. Connections that the new policy does not allow are closed. Copies of the sandbox have
    /// the policy that is in force when they are made.
    ///
    /// # Errors
    /// - `Unsupported` for a sandbox that was created without a policy, and for hosts that need a port which no rule of
    ///   the first policy had.
    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        let _ = policy;
        Err(Error::unsupported("set_network", "this backend cannot change the network policy of a live sandbox")
            .with_remedy("create another sandbox"))
    }

    /// Connects to a TCP port on the loopback interface of the sandbox.
    ///
    /// # Behavior
    /// - Fails with `Unsupported` unless [`Capability::Connect`] is declared.
    /// - Fails with `Unavailable` if no program listens on the port.
    /// - The connection ends with the sandbox. A shutdown of one direction leaves the other open.
    async fn connect(&self, port: u16) -> Result<Connection> {
        let _ = port;
        Err(Error::unsupported("connect", "this backend cannot connect to ports of a sandbox"))
    }

    /// Starts a command.
    ///
    /// # Behavior
    /// - Fails with `NotFound` or `NotExecutable` if the program cannot be started.
    /// - When the timeout expires, the process tree is killed. The exit then has code -1 and `timed_out` set.
    /// - Concurrent execs do not see each other's output, input or end.
    async fn start(&self, request: ExecRequest) -> Result<ExecHandle>;

    /// Runs a command and collects its output, without loss up to the request's `max_output`.
    async fn exec(&self, request: ExecRequest) -> Result<Completed> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        collect(self.start(request).await?).await
    }

    /// Opens a regular file of the workspace for reading.
    ///
    /// # Errors
    /// - `PathEscape` for a symlink that leads outside the workspace. Symlinks are followed only inside it.
    /// - `Conflict` for a fifo, socket, device or directory. The call never blocks on one.
    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader>;

    /// Opens a regular file of the workspace for reading from the byte offset `offset`. Beyond the end of the file, the
    /// reader is empty.
    ///
    /// # Behavior
    /// - The rules of [`Self::read_file`] for symlinks and special files apply.
    /// - A backend that can seek does so. This default implementation reads and discards the bytes before `offset`, and
    ///   fails with `ResourceExhausted` if `offset` is greater than [`MAX_SKIPPED`]. A sparse file of any length
    ///   therefore costs at most that much.
    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        if offset > MAX_SKIPPED.as_bytes() {
            let message = format!("this backend cannot read a file from an offset beyond {MAX_SKIPPED}");
            return Err(Error::new(ErrorKind::ResourceExhausted, "read_file", message)
                .with_context("path", path.to_string())
                .with_remedy("copy the part into a new file with a command such as tail -c, then read that file"));
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

    /// Creates or replaces a regular file with `contents`, and creates missing parent directories. Returns the number
    /// of bytes written.
    ///
    /// # Behavior
    /// - The rules of [`Self::read_file`] for symlinks and special files apply.
    /// - The write is atomic: the file appears complete or not at all.
    /// - Fails with `ResourceExhausted` beyond the disk limit.
    /// - Succeeds in a private workspace that is read-only for the guest. Fails with `Denied` in a host directory that
    ///   is mounted read-only.
    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64>;

    /// Lists a directory, sorted by name. Fails with `ResourceExhausted` if it has more than 100,000 entries.
    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>>;

    /// Creates a file, directory or symlink with its permissions, and missing parent directories. Returns the number of
    /// bytes written.
    ///
    /// # Behavior
    /// - No symlink is followed: a parent that is one fails with `PathEscape`, and one at the path itself is replaced.
    /// - A regular file or symlink is replaced, by a regular file atomically. A directory only changes its permissions.
    /// - Fails with `Conflict` if the path is of another kind, such as a directory where a file is to be.
    /// - The limits and refusals of [`Self::write_file`] apply.
    /// - Fails with `Unsupported` unless [`Capability::Files`] is declared.
    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        let _ = (path, entry);
        Err(Error::unsupported("put", "this backend cannot create files with permissions, or symlinks"))
    }

    /// Copies an archive (tar) into the directory `destination` of the workspace, which is created if it is missing.
    ///
    /// # Behavior
    /// - The archive is untrusted: one with an absolute path or `..` is refused with `InvalidInput`.
    /// - Permissions, times and symlinks are kept. Set-user-ID and set-group-ID bits are removed. Devices, fifos and
    ///   hard links are skipped. The report lists both.
    /// - Existing files are replaced, as by [`Self::put`].
    /// - Fails with `ResourceExhausted` beyond the disk limit. The entries before it remain.
    async fn copy_in(&self, destination: &SandboxPath, tar: FileReader) -> Result<CopyReport> {
        copy::copy_in(self, destination, tar).await
    }

    /// Writes the selected files as an archive (tar). Directories are included with everything in them, in the order of
    /// names.
    ///
    /// # Behavior
    /// - No symlink below [`CopyOut::from`] is followed. Symlinks are included as they are, and may lead anywhere: the
    ///   caller decides which to create.
    /// - Set-user-ID and set-group-ID bits are removed. Devices, fifos, sockets and what cannot be read are skipped, as
    ///   are names that begin with `.wh.`, so that the archive is a layer of an image as well. The report lists all.
    /// - Programs that run may change files meanwhile. Each file is then as it was at some moment.
    ///
    /// # Errors
    /// - `NotFound` if the directory [`CopyOut::from`] is missing. A pattern without a match is reported.
    /// - `ResourceExhausted` beyond the bounds of `wanted`. The archive is then incomplete.
    async fn copy_out(&self, wanted: &CopyOut, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<CopyReport> {
        copy::copy_out(self, wanted, into).await
    }

    /// Renames a file, a symlink (not its target) or a directory with its contents, in one step.
    ///
    /// # Behavior
    /// - A file or symlink at `to` is replaced, as is an empty directory by a directory. A symlink there is not followed.
    /// - The directory above `to` must exist.
    ///
    /// # Errors
    /// - `Conflict` if what is at `to` cannot be replaced, if `to` is in another file system, such as a mount, or for a
    ///   directory of the original in a copy-on-write workspace, which has to be copied.
    /// - `InvalidInput` for the workspace itself, and for a directory that would be moved into itself.
    /// - `Denied` in a host directory that is mounted read-only.
    /// - `Unsupported` unless [`Capability::Files`] is declared.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let _ = (from, to);
        Err(Error::unsupported("rename", "this backend cannot rename files"))
    }

    /// Removes a file, a symlink (not its target) or a directory with its contents.
    ///
    /// # Errors
    /// - `Denied` in a host directory that is mounted read-only.
    async fn remove(&self, path: &SandboxPath) -> Result<()>;

    /// Watches a directory of the workspace. Everything that changes after this call has returned is reported.
    ///
    /// # Behavior
    /// - The first change and those of the next [`WatchOptions::coalesce`] are delivered together. Changes of one path
    ///   become one event, and their order is lost. Events are otherwise in order: applied to the listed paths, they
    ///   lead to the paths that exist. [`WatchEvent::Overflow`](crate::WatchEvent::Overflow) asks for a new list.
    /// - A recursive watch includes new directories, and reports what was created in them before they were watched.
    ///   Beyond [`MAX_WATCHED_DIRECTORIES`](crate::MAX_WATCHED_DIRECTORIES), directories are not watched, which
    ///   `Overflow` reports. The same applies to directories that the host cannot read.
    /// - Changes of a name that is not UTF-8 are reported as a change of its directory. Writes through a memory map are
    ///   not reported. The guest can hide changes from a watch: it is no security boundary.
    /// - While the sandbox is paused, no event arrives. Changes are not lost.
    /// - The watch ends with the sandbox. It also ends, after a `Removed` event for its own path, when the watched
    ///   directory is removed or renamed. Renames of directories above it are not reported.
    ///
    /// # Errors
    /// - `Unsupported` unless [`Capability::Watch`] is declared.
    /// - `NotFound` for a missing path, `Conflict` for one that is no directory.
    /// - `PathEscape` for a path through a symlink: a watch follows none.
    /// - `ResourceExhausted` beyond [`MAX_WATCHES`](crate::MAX_WATCHES), and for a host without free watches.
    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        let _ = (path, options);
        Err(Error::unsupported("watch", "this backend cannot watch files")
            .with_remedy("list the directory again and again"))
    }

    /// Returns the changes of a copy-on-write workspace so far, as an uncompressed layer of an OCI image: a tar with
    /// whiteouts. Its PAX records name the host directory, and the files of it that are replaced or deleted.
    ///
    /// # Behavior
    /// - Devices, fifos, sockets and what cannot be read are left out and listed.
    /// - Programs that run may change files meanwhile. Each file is then as it was at some moment.
    ///
    /// # Errors
    /// - `Unsupported` unless [`Capability::CopyOnWrite`] is declared.
    /// - `InvalidInput` for a sandbox with another workspace.
    async fn changes(&self) -> Result<WorkspaceChanges> {
        Err(Error::unsupported("changes", "this backend has no copy-on-write workspaces"))
    }

    /// Takes a snapshot of the sandbox. Fails with `Unsupported` unless [`Capability::Snapshot`] is declared.
    async fn snapshot(&self) -> Result<Snapshot>;

    /// Creates an independent copy that resumes from the current state. Fails with `Unsupported` unless
    /// [`Capability::Fork`] is declared.
    async fn fork(&self) -> Result<Arc<dyn Sandbox>>;

    /// Pauses every program in the sandbox until [`Self::resume`]. Idempotent.
    ///
    /// # Behavior
    /// - Fails with `Unsupported` unless [`Capability::Pause`] is declared.
    /// - While paused, programs make no progress and the timeouts of their execs do not run.
    /// - Operations on an exec (input, cancel, drop of its handle) take effect when the sandbox resumes.
    /// - Every call other than `resume`, `usage` and `close` fails with `Conflict`. `close` works as on any sandbox. A
    ///   backend may also allow `snapshot` and `fork` of a paused sandbox; the copy is not paused.
    async fn pause(&self) -> Result<()>;

    /// Resumes a paused sandbox. Idempotent; has no effect on a sandbox that is not paused.
    async fn resume(&self) -> Result<()>;

    /// Returns the current resource usage.
    async fn usage(&self) -> Result<SandboxUsage>;

    /// Closes the sandbox: ends every exec and frees all processes, mounts, cgroups and directories. Returns when
    /// nothing is left. Idempotent.
    async fn close(&self) -> Result<()>;
}

impl dyn Sandbox {
    /// Reads a whole file into memory.
    ///
    /// # Errors
    /// - `ResourceExhausted` if the file is larger than `limit`.
    /// - The errors of [`Sandbox::read_file`].
    pub async fn read_file_to_end(&self, path: &SandboxPath, limit: ByteSize) -> Result<Vec<u8>> {
        use tokio::io::AsyncReadExt;
        let reader = self.read_file(path).await?;
        let mut data = Vec::new();
        reader.take(limit.as_bytes().saturating_add(1)).read_to_end(&mut data).await.map_err(|error| {
            crate::Error::new(crate::ErrorKind::Io, "read_file", "cannot read the file").with_source(error)
        })?;
        if data.len() as u64 > limit.as_bytes() {
            return Err(crate::Error::new(
                crate::ErrorKind::ResourceExhausted,
                "read_file",
                format!("the file is larger than {limit}"),
            ));
        }
        Ok(data)
    }

    /// Starts the first command of a new sandbox. If it cannot be started, the sandbox is closed.
    ///
    /// # Errors
    /// - Those of [`Sandbox::start`], with the error of a failed close as context.
    pub async fn start_or_close(self: Arc<Self>, request: ExecRequest) -> Result<(Arc<Self>, ExecHandle)> {
        match self.start(request).await {
            Ok(handle) => Ok((self, handle)),
            Err(error) => Err(error.with_failed_close(self.close().await)),
        }
    }

    /// Writes `contents` to a file as [`Sandbox::write_file`] does. Returns the number of bytes written.
    pub async fn write_bytes(&self, path: &SandboxPath, contents: impl Into<Bytes>) -> Result<u64> {
        self.write_file(path, Box::new(std::io::Cursor::new(contents.into()))).await
    }
}

/// Collects an exec's output and waits for its exit. Output that the ring buffer dropped before it was read sets
/// `truncated`. Dropping the future drops the handle if the handle was passed by value.
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

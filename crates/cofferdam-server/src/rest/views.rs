//! The documents of the API: requests and answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Capability, Command, DirEntry, EntryKind, EnvDelta, Error, ExecRequest, Exit, Level, Limits,
    NetworkPolicy, NetworkUsage, Posture, Result, SandboxPath, SandboxUsage, Script, Stdin, TerminalSize, Workspace,
    serde_optional_duration,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::images::HostImage;
use crate::live::{LiveExec, LiveSandbox};

mod changes;
mod code;
mod files;
mod plugins;
mod runs;
mod snapshots;
mod volumes;

pub use changes::{AppliedChanges, ApplyChanges, ChangesReport, DeletedSandbox, HostDirectory};
pub use code::{CodeEvent, CodeOutcome, KernelList, KernelView, OpenKernel, RunCode};
pub use files::{Copied, FileEvent, MoveFile};
pub use plugins::{CallPlugin, PluginEvent, PluginList, PluginOutcome};
pub use runs::{OutputView, RunResult, StartRun};
pub use snapshots::{ForkSandbox, SnapshotList, SnapshotView, TakeSnapshot};
pub use volumes::{CreateVolume, MountVolume, VolumeList, VolumeView};

/// A new sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSandbox {
    /// The backend. Default: the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The isolation level that the backend must have at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// A name, unique for the tenant, which can be used in place of the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// An image as the root file system. Default: the backend's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The id or name of a snapshot to start from. Its backend and, if `limits` is missing, its limits apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// A directory of the server's host as a copy-on-write workspace, for the server's own user over the private socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<HostDirectory>,
    /// Volumes of the tenant, at paths of the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<MountVolume>,
    /// True makes the workspace read-only for code. Files can be written by this API only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The resource limits. Default: those of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The network policy. Secrets are refused.
    pub network: NetworkPolicy,
    /// Labels: keys and values for the caller's own use.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The time without use after which the sandbox is closed, in seconds or as text such as `15m`.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub idle: Option<Duration>,
    /// The lifetime, in seconds or as text such as `1h`.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub life: Option<Duration>,
}

/// New times of a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtendSandbox {
    /// The lifetime from now.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub life: Option<Duration>,
    /// The time without use after which the sandbox is closed.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub idle: Option<Duration>,
}

/// A new name of a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameSandbox {
    /// The name, unique for the tenant. `null` removes the name.
    pub name: Option<String>,
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxState {
    /// Programs run.
    Running,
    /// All programs are paused.
    Paused,
}

/// A sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SandboxView {
    /// The id.
    pub id: String,
    /// The name, if it has one.
    pub name: Option<String>,
    /// The backend.
    pub backend: String,
    /// The isolation level.
    pub level: Level,
    /// The state.
    pub state: SandboxState,
    /// The time of creation, in seconds since 1970.
    pub created: f64,
    /// The time of its end, in seconds since 1970.
    pub ends: f64,
    /// The time without use after which it is closed, in seconds.
    pub idle: f64,
    /// The time of the last use, in seconds since 1970.
    pub used: f64,
    /// The number of execs that run.
    pub running: usize,
    /// True while an exec runs or a client is connected, which are uses.
    pub busy: bool,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The id of the snapshot or sandbox that it was created from, which may be gone.
    #[serde(default)]
    pub parent: Option<String>,
}

/// A sandbox with everything about it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SandboxDetails {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: SandboxView,
    /// The directory of the server's host that a copy-on-write workspace shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// The volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<MountVolume>,
    /// The resource limits.
    pub limits: Limits,
    /// The network policy.
    pub network: NetworkPolicy,
    /// The protections that are enforced, as measured.
    pub posture: Posture,
}

/// A page of sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SandboxList {
    /// The sandboxes, oldest first.
    pub sandboxes: Vec<SandboxView>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

/// Input of an exec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StdinView {
    /// No input. The default.
    #[default]
    Empty,
    /// This text, then the end.
    Text(String),
    /// These bytes in base64, then the end.
    Base64(String),
    /// A stream, by `stdin` requests or a WebSocket.
    Stream,
}

/// Code that is written to a private file and run by an interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptView {
    /// The interpreter and its options, such as `["python3"]`.
    pub interpreter: Vec<String>,
    /// The name of the file, such as `main.py`.
    pub name: String,
    /// The code.
    pub text: String,
    /// Arguments after the file name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// A new exec. It has exactly one of `argv`, `shell` and `script`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StartExec {
    /// A program and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A command line for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Code for an interpreter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptView>,
    /// Changes of the environment: a text sets a variable, `null` unsets it.
    pub env: EnvDelta,
    /// The working directory, relative to the workspace.
    pub working_dir: SandboxPath,
    /// The input.
    pub stdin: StdinView,
    /// The size of a terminal to run in. Default: no terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// The limit on wall-clock time. Default: that of the sandbox.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
    /// The most bytes of output. Default: 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<ByteSize>,
    /// The bytes of output that are kept for clients that fall behind, at most the server's bound. Default:
    /// `max_output`, at most 8 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_buffer: Option<ByteSize>,
}

impl StartExec {
    /// Returns the document of a request.
    ///
    /// # Errors
    /// - `Unsupported` for code that is not UTF-8.
    pub fn of(request: &ExecRequest) -> Result<Self> {
        let mut this = Self {
            env: request.env().clone(),
            working_dir: request.working_dir().clone(),
            stdin: match request.stdin() {
                Stdin::Empty => StdinView::Empty,
                Stdin::Bytes(bytes) => StdinView::Base64(STANDARD.encode(bytes)),
                Stdin::Stream => StdinView::Stream,
            },
            terminal: request.terminal(),
            timeout: request.timeout(),
            max_output: Some(request.max_output()),
            output_buffer: Some(request.output_buffer()),
            ..Self::default()
        };
        match request.command() {
            Command::Argv(argv) => this.argv = Some(argv.clone()),
            Command::Shell(line) => this.shell = Some(line.clone()),
            Command::Script(Script { interpreter, name, contents, args }) => {
                let text = String::from_utf8(contents.to_vec())
                    .map_err(|_| Error::unsupported("start", "code for a server must be UTF-8"))?;
                let (interpreter, name, args) = (interpreter.clone(), name.clone(), args.clone());
                this.script = Some(ScriptView { interpreter, name, text, args });
            }
        }
        Ok(this)
    }

    /// Returns the contract's request.
    ///
    /// # Errors
    /// - `InvalidInput` for a malformed request.
    pub fn into_request(self) -> Result<ExecRequest> {
        let Self { argv, shell, script, env, working_dir, stdin, terminal, timeout, max_output, output_buffer } = self;
        let command = match (argv, shell, script) {
            (Some(argv), None, None) => Command::Argv(argv),
            (None, Some(line), None) => Command::Shell(line),
            (None, None, Some(ScriptView { interpreter, name, text, args })) => {
                Command::Script(Script { interpreter, name, contents: Bytes::from(text), args })
            }
            _ => return Err(Error::invalid("start", "an exec needs exactly one of argv, shell and script")),
        };
        let mut builder = ExecRequest::builder(command).working_dir(working_dir).stdin(stdin.into_stdin()?);
        for (name, value) in env.iter() {
            builder = match value {
                Some(value) => builder.env(name, value),
                None => builder.unset_env(name),
            };
        }
        if let Some(size) = terminal {
            builder = builder.terminal(size);
        }
        if let Some(timeout) = timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(size) = max_output {
            builder = builder.max_output(size);
        }
        if let Some(size) = output_buffer {
            builder = builder.output_buffer(size);
        }
        builder.build()
    }
}

impl StdinView {
    fn into_stdin(self) -> Result<Stdin> {
        Ok(match self {
            Self::Empty => Stdin::Empty,
            Self::Text(text) => Stdin::Bytes(text.into()),
            Self::Base64(text) => {
                let decoded = STANDARD.decode(text);
                Stdin::Bytes(decoded.map_err(|_| Error::invalid("start", "the input is not base64"))?.into())
            }
            Self::Stream => Stdin::Stream,
        })
    }
}

/// The state of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExecState {
    /// It runs.
    Running,
    /// It has ended, and has an exit.
    Ended,
    /// The sandbox failed, and has an error.
    Failed,
}

/// An exec.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ExecView {
    /// The id.
    pub id: String,
    /// The start of the command line.
    pub command: String,
    /// The state.
    pub state: ExecState,
    /// The time of the start, in seconds since 1970.
    pub started: f64,
    /// True if it runs in a terminal.
    pub terminal: bool,
    /// True if it takes input as a stream.
    pub stdin: bool,
    /// The exit, if it has ended.
    pub exit: Option<Exit>,
    /// The failure, if the sandbox failed.
    pub error: Option<super::problem::Problem>,
    /// The refusals of the sandbox's network policy while the exec ran, each kind once and at most 65. Empty until the exec
    /// has ended, and missing if the sandbox was created without a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_denials: Option<Vec<String>>,
}

/// A page of the execs of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ExecList {
    /// The execs, oldest first.
    pub execs: Vec<ExecView>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

/// A signal for an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Signal {
    /// SIGTERM, and SIGKILL after the grace period.
    #[serde(rename = "TERM")]
    Term,
    /// SIGKILL.
    #[serde(rename = "KILL")]
    Kill,
}

/// A request to signal an exec.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalExec {
    /// The signal.
    pub signal: Signal,
    /// The time between SIGTERM and SIGKILL. Default: 2 s.
    #[serde(default, with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub grace: Option<Duration>,
}

/// A page of the entries of a directory.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileList {
    /// The entries, sorted by name.
    pub entries: Vec<DirEntry>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

/// A file or directory.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileStat {
    /// The path inside the sandbox.
    pub path: String,
    /// The type.
    pub kind: EntryKind,
    /// The size of a regular file in bytes; 0 for other types.
    pub size: u64,
}

/// The result of an upload.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    /// The number of bytes.
    pub bytes: u64,
}

/// A backend of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BackendView {
    /// The name.
    pub name: String,
    /// The isolation level.
    pub level: Level,
    /// True for the backend of sandboxes that name none.
    pub default: bool,
    /// The optional features.
    pub capabilities: Vec<Capability>,
}

/// The backends of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BackendList {
    /// The backends.
    pub backends: Vec<BackendView>,
}

/// A page of the images of the host.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ImageList {
    /// The images, in the order of digests.
    pub images: Vec<HostImage>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
    /// The bytes that all images take together. For callers with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The most bytes that they can take. For callers with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
}

/// The state of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`, or `stopping` while the server drains.
    pub status: String,
}

/// The version of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// The program's version.
    pub version: String,
    /// The versions of the API that it serves.
    pub api: Vec<String>,
}

/// The resource usage of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct StatsView {
    /// The usage now.
    pub usage: SandboxUsage,
    /// The use of the network since the create, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkUsage>,
    /// The resource limits.
    pub limits: Limits,
}

/// An event of an exec's output, as a server-sent event of the same name and as a text message of a WebSocket.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum ExecEvent {
    /// Bytes of output. On a WebSocket they are binary messages instead: 1 for standard output or 2 for standard error,
    /// then the bytes.
    Output {
        /// `stdout` or `stderr`.
        stream: cofferdam_contract::OutputStream,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes in base64.
        data: String,
    },
    /// Output that the server no longer has.
    Lost {
        /// The number of bytes.
        bytes: u64,
        /// The offset after them.
        offset: u64,
    },
    /// The end of the exec and of the stream.
    Exit {
        /// The exit.
        exit: Exit,
    },
    /// The failure of the sandbox, and the end of the stream.
    Error {
        /// The failure.
        error: super::problem::Problem,
    },
}

/// Returns seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl SandboxView {
    pub(super) fn of(live: &LiveSandbox) -> Self {
        let lease = live.lease();
        let (now, time) = (Instant::now(), SystemTime::now());
        let busy = live.is_busy();
        let unused = if busy { Duration::ZERO } else { now.saturating_duration_since(lease.used) };
        Self {
            id: live.id.clone(),
            name: live.name(),
            backend: live.backend.clone(),
            level: live.level,
            state: if live.is_paused() { SandboxState::Paused } else { SandboxState::Running },
            created: seconds(live.created),
            ends: seconds(time + lease.ends.saturating_duration_since(now)),
            idle: lease.idle.as_secs_f64(),
            used: seconds(time - unused),
            running: live.running(),
            busy,
            labels: live.inner().spec().labels().clone(),
            parent: live.parent.clone(),
        }
    }
}

impl SandboxDetails {
    pub(super) fn of(live: &LiveSandbox) -> Self {
        let inner = live.inner();
        Self {
            sandbox: SandboxView::of(live),
            workspace: match inner.spec().workspace() {
                Workspace::CopyOnWrite { path } => Some(path.clone()),
                _ => None,
            },
            volumes: live.volumes.iter().map(MountVolume::of).collect(),
            limits: inner.spec().limits().clone(),
            network: inner.network_policy(),
            posture: inner.posture().clone(),
        }
    }
}

impl ExecView {
    pub(super) fn of(exec: &LiveExec) -> Self {
        let outcome = exec.try_exit();
        let state = match &outcome {
            None => ExecState::Running,
            Some(Ok(_)) => ExecState::Ended,
            Some(Err(_)) => ExecState::Failed,
        };
        let (exit, error) = match outcome {
            None => (None, None),
            Some(Ok(exit)) => (Some(exit), None),
            Some(Err(error)) => (None, Some((&super::problem::Failure::from(error)).into())),
        };
        Self {
            id: exec.id.clone(),
            command: exec.command.clone(),
            state,
            started: seconds(exec.started),
            terminal: exec.has_terminal,
            stdin: exec.has_stdin,
            exit,
            error,
            network_denials: exec.network_denials(),
        }
    }
}

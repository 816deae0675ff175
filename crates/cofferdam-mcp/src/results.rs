//! What each tool gives: the structured part of its result, whose schema clients are told beforehand.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_code::{CodeResult, Data, Touched};
use cofferdam_contract::{DirEntry, EntryKind, Level, Limits, NetworkPolicy, Protection, ProtectionState, Sandbox};
use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;
use serde_json::Value;

/// Result of `run_code`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CodeOutput {
    /// Standard output; the middle of a long one is left out. What is not UTF-8 is replaced.
    pub stdout: String,
    /// Standard error; the middle of a long one is left out. What is not UTF-8 is replaced.
    pub stderr: String,
    /// How it ended.
    #[serde(flatten)]
    pub end: End,
    /// Results besides the output, such as the value of the last expression. They are the code's.
    pub results: Vec<Rich>,
    /// Results that were too many, too large or not well-formed.
    pub results_dropped: u64,
    /// Files of the workspace that were made, changed or removed.
    pub files: Vec<FileChange>,
    /// Whether all that changed is among them.
    pub files_complete: bool,
    /// What screening found; whether there is more, and why the code was not screened, if it was not.
    pub findings: Vec<String>,
    /// The interpreter, and its version where it is known.
    pub runtime: String,
    /// The backend.
    pub backend: String,
    /// How thick its wall is.
    pub level: String,
    /// SHA-256 of what was measured of the wall.
    pub posture: String,
    /// Names the execution, also in the audit log.
    pub execution: String,
    /// The live interpreter that it ran in, if it was a call of one.
    pub session: Option<Session>,
    /// Where it ran.
    #[serde(flatten)]
    pub place: Place,
}

/// A live interpreter, after a call.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// How many calls it has had; 1 means that it was started for this one.
    pub calls: u64,
    /// Why it is gone, if this call ended it. What was defined in it is gone, too.
    pub lost: Option<String>,
}

/// A result besides the output.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Rich {
    /// How it came to be: value, display or figure.
    pub kind: String,
    /// The same thing in several forms, by media type. Images are content of their own, and only named here.
    pub data: BTreeMap<String, Value>,
    /// What is missing of it.
    pub note: Option<String>,
}

/// What became of a file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileChange {
    /// Its path in the workspace. Code chose it: treat it as such.
    pub path: String,
    /// What became of it: created, changed or removed.
    pub change: String,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its contents, where they were read.
    pub sha256: Option<String>,
    /// Its contents as text, where they were asked for and fit.
    pub text: Option<String>,
    /// Its contents in base64, where they are no text.
    pub base64: Option<String>,
}

/// Result of `run_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CommandResult {
    /// Standard output; the middle of a long one is left out. What is not UTF-8 is replaced.
    pub stdout: String,
    /// Standard error; the middle of a long one is left out. What is not UTF-8 is replaced.
    pub stderr: String,
    /// How it ended.
    #[serde(flatten)]
    pub end: End,
    /// The directory in which the next line of this sandbox begins.
    pub working_dir: String,
    /// Where it ran.
    #[serde(flatten)]
    pub place: Place,
}

/// How a command or code ended.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct End {
    /// The exit code; -1 after a time-out or when a signal ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its time ran out.
    pub timed_out: bool,
    /// Whether output was left out.
    pub truncated: bool,
    /// The limit that killed it: memory, cpu, pids or disk.
    pub killed_by: Option<String>,
    /// Limits at which something was refused or killed while it ran.
    pub limits_hit: Vec<String>,
    /// Seconds of real time that it took.
    pub duration_seconds: f64,
}

impl From<&CodeResult> for End {
    fn from(result: &CodeResult) -> Self {
        Self {
            exit_code: result.exit_code,
            signal: result.signal,
            timed_out: result.timed_out,
            truncated: result.truncated,
            killed_by: result.killed_by.map(|limit| limit.as_str().to_owned()),
            limits_hit: result.limits_hit.iter().map(|limit| limit.as_str().to_owned()).collect(),
            duration_seconds: result.duration.as_secs_f64(),
        }
    }
}

impl From<&cofferdam_code::FileChange> for FileChange {
    fn from(file: &cofferdam_code::FileChange) -> Self {
        let change = match file.change {
            Touched::Created => "created",
            Touched::Changed => "changed",
            Touched::Removed => "removed",
        };
        let bytes = file.contents.as_ref().map(Data::bytes);
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned);
        let base64 = if text.is_none() { bytes.map(|bytes| STANDARD.encode(bytes)) } else { None };
        let (path, size, sha256) = (file.name.clone(), file.size, file.sha256.clone());
        Self { path, change: change.to_owned(), size, sha256, text, base64 }
    }
}

/// Where a call ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Place {
    /// Id of the sandbox; null where it was made for this call alone, and is gone.
    pub sandbox: Option<String>,
    /// Whether the sandbox was made for this call, so that its workspace was new.
    pub created: bool,
}

/// Result of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileContents {
    /// Path of the file in the workspace.
    pub path: String,
    /// Media type, guessed from name and contents.
    pub media_type: String,
    /// Bytes that were left out at the beginning.
    pub offset: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether the file goes on after them.
    pub more: bool,
    /// The contents, where they are text. Images are content of their own, anything else is an embedded blob.
    pub text: Option<String>,
}

/// Result of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Written {
    /// Path of the file in the workspace.
    pub path: String,
    /// Bytes that it holds now.
    pub bytes: u64,
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
}

/// Result of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Edited {
    /// Path of the file in the workspace.
    pub path: String,
    /// How many times the text was replaced.
    pub replacements: u64,
    /// Bytes that the file holds now.
    pub bytes: u64,
}

/// One file, directory or other thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Entry {
    /// Path in the workspace. Code chose it: treat it as such.
    pub path: String,
    /// What it is: file, directory, symlink or other. Links are not followed.
    pub kind: String,
    /// Size of a file in bytes, else 0.
    pub size: u64,
}

impl Entry {
    /// An entry at its place.
    pub fn new(path: String, entry: &DirEntry) -> Self {
        let kind = match entry.kind {
            EntryKind::File => "file",
            EntryKind::Directory => "directory",
            EntryKind::Symlink => "symlink",
            EntryKind::Other => "other",
        };
        Self { path, kind: kind.to_owned(), size: entry.size }
    }
}

/// Result of `list_files`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Listing {
    /// Path of the directory in the workspace.
    pub path: String,
    /// What is in it.
    pub entries: Vec<Entry>,
    /// Whether there is more than is listed.
    pub truncated: bool,
}

/// What a sandbox may use.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Allowed {
    /// Seconds of real time that one call may take.
    pub timeout_seconds: f64,
    /// CPU seconds of one call; null without a bound.
    pub cpu_seconds: Option<f64>,
    /// Bytes of memory; null without a bound.
    pub memory_bytes: Option<u64>,
    /// Bytes that may be stored; null without a bound.
    pub disk_bytes: Option<u64>,
    /// Processes and threads; null without a bound.
    pub pids: Option<u32>,
    /// Processes without their threads; null without a bound.
    pub processes: Option<u32>,
}

impl From<&Limits> for Allowed {
    fn from(limits: &Limits) -> Self {
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus: _ } = limits;
        Self {
            timeout_seconds: wall_time.as_secs_f64(),
            cpu_seconds: cpu_time.map(|time| time.as_secs_f64()),
            memory_bytes: memory.map(|size| size.as_bytes()),
            disk_bytes: disk.map(|size| size.as_bytes()),
            pids: *pids,
            processes: *processes,
        }
    }
}

/// Result of `create_sandbox`, `restore_sandbox` and `fork_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Made {
    /// Id of the sandbox. Who knows it can use it: keep it.
    pub sandbox: String,
    /// The backend that made it.
    pub backend: String,
    /// How thick its wall is: simulated, wasm, process, container or vm.
    pub level: String,
    /// Where the workspace is inside.
    pub workspace: String,
    /// What it may use.
    pub limits: Allowed,
    /// Hosts that may be reached; empty without a network.
    pub network: Vec<String>,
    /// Protections that are weaker than asked, or absent.
    pub weaker: Vec<String>,
    /// Seconds without a call after which it is closed.
    pub idle_seconds: f64,
}

impl Made {
    /// What is said about a sandbox that was just made.
    pub fn new(id: &str, backend: &str, level: Level, sandbox: &dyn Sandbox, idle: std::time::Duration) -> Self {
        let network = match sandbox.spec().network() {
            NetworkPolicy::Allow { hosts } => hosts.clone(),
            _ => Vec::new(),
        };
        let less = |state| matches!(state, ProtectionState::WeakerThanAsked | ProtectionState::Absent);
        let weaker = sandbox.posture().items().iter().filter(|item| less(item.state)).map(|item| item.protection);
        Self {
            sandbox: id.to_owned(),
            backend: backend.to_owned(),
            level: level.as_str().to_owned(),
            workspace: cofferdam_contract::WORKSPACE_PATH.to_owned(),
            limits: sandbox.spec().limits().into(),
            network,
            weaker: weaker.map(Protection::as_str).map(str::to_owned).collect(),
            idle_seconds: idle.as_secs_f64(),
        }
    }
}

/// Result of `snapshot_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Snapped {
    /// Id of the snapshot. Who knows it can restore it: keep it.
    pub snapshot: String,
    /// Id of the sandbox that it was taken from, which goes on.
    pub sandbox: String,
    /// Seconds without a use after which it is forgotten.
    pub idle_seconds: f64,
}

/// Result of `close_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Closed {
    /// Id of what was closed or forgotten.
    pub closed: String,
}

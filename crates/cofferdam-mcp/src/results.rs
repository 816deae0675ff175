//! Structured results of the tools. Clients get their schemas in `tools/list`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_code::{CodeResult, Data, Touched};
use cofferdam_contract::{DirEntry, EntryKind, Level, Limits, Protection, ProtectionState, Sandbox};
use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;
use serde_json::Value;

/// Result of `run_code`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CodeOutput {
    /// Standard output, with the middle left out if it is long, and invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, with the middle left out if it is long, and invalid UTF-8 replaced.
    pub stderr: String,
    /// End of the run.
    #[serde(flatten)]
    pub end: End,
    /// Results in addition to the output, such as the value of the last expression. Untrusted: the code produced them.
    pub results: Vec<Rich>,
    /// Number of results that were dropped because they were too many, too large or malformed.
    pub results_dropped: u64,
    /// Files of the workspace that were created, changed or removed.
    pub files: Vec<FileChange>,
    /// True if `files` contains all changes.
    pub files_complete: bool,
    /// Findings of screening, with notes on omitted findings and on code that was not screened.
    pub findings: Vec<String>,
    /// The interpreter, with its version if it is known.
    pub runtime: String,
    /// The backend.
    pub backend: String,
    /// The isolation level.
    pub level: String,
    /// SHA-256 of the measured protections.
    pub posture: String,
    /// Id of the execution, also in the audit log.
    pub execution: String,
    /// The live interpreter that ran the code, if the call used one.
    pub session: Option<InterpreterState>,
    /// The sandbox of the call.
    #[serde(flatten)]
    pub used: UsedSandbox,
}

/// A live interpreter, after a call.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InterpreterState {
    /// Its name.
    pub name: String,
    /// Number of its calls. 1 means that this call started it.
    pub calls: u64,
    /// The reason why it is lost, with all definitions, if this call ended it.
    pub lost: Option<String>,
}

/// A result in addition to the output.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Rich {
    /// Kind of the result: value, display or figure.
    pub kind: String,
    /// Representations of the result by media type. Images are separate content; here their value is null.
    pub data: BTreeMap<String, Value>,
    /// A note on missing parts.
    pub note: Option<String>,
}

/// A change of a file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileChange {
    /// Path in the workspace. Untrusted: the code chose it.
    pub path: String,
    /// Kind of the change: created, changed or removed.
    pub change: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the contents, if they were read.
    pub sha256: Option<String>,
    /// Contents as text, if they were requested and are not too large.
    pub text: Option<String>,
    /// Contents in base64, if they are not text.
    pub base64: Option<String>,
}

/// Result of `run_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CommandResult {
    /// Standard output, with the middle left out if it is long, and invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, with the middle left out if it is long, and invalid UTF-8 replaced.
    pub stderr: String,
    /// End of the run.
    #[serde(flatten)]
    pub end: End,
    /// Start directory of the next line in this sandbox.
    pub working_dir: String,
    /// The sandbox of the call.
    #[serde(flatten)]
    pub used: UsedSandbox,
}

/// The end of a command or of code.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct End {
    /// Exit code; -1 after a timeout or a signal.
    pub exit_code: i32,
    /// The signal that terminated it.
    pub signal: Option<i32>,
    /// True if it was killed by the timeout.
    pub timed_out: bool,
    /// True if output was left out.
    pub truncated: bool,
    /// The limit that killed it: memory, cpu, pids or disk.
    pub killed_by: Option<String>,
    /// Limits that refused an operation or killed a process during the run.
    pub limits_hit: Vec<String>,
    /// Refusals of the server's network policy during the run, with the rule that would allow it.
    pub network_denials: Vec<String>,
    /// Real time of the run in seconds.
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
            network_denials: result.network_denials.iter().map(ToString::to_string).collect(),
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

/// The sandbox of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UsedSandbox {
    /// Id of the sandbox; null if it existed only for this call.
    pub sandbox: Option<String>,
    /// True if the sandbox was created for this call with a new workspace.
    pub created: bool,
}

/// Result of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileContents {
    /// Path of the file in the workspace.
    pub path: String,
    /// Media type, guessed from name and contents.
    pub media_type: String,
    /// Number of skipped bytes.
    pub offset: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// True if the file continues after them.
    pub more: bool,
    /// The contents, if they are text. Images are separate content, and other contents an embedded blob.
    pub text: Option<String>,
}

/// Result of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Written {
    /// Path of the file in the workspace.
    pub path: String,
    /// New size of the file in bytes.
    pub bytes: u64,
    /// The sandbox of the call.
    #[serde(flatten)]
    pub used: UsedSandbox,
}

/// Result of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Edited {
    /// Path of the file in the workspace.
    pub path: String,
    /// Number of replacements.
    pub replacements: u64,
    /// New size of the file in bytes.
    pub bytes: u64,
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Entry {
    /// Path in the workspace. Untrusted: code may have chosen it.
    pub path: String,
    /// Kind of the entry: file, directory, symlink or other. Symlinks are not followed.
    pub kind: String,
    /// Size of a file in bytes, else 0.
    pub size: u64,
}

impl Entry {
    /// Converts an entry at this path.
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
    /// Its entries.
    pub entries: Vec<Entry>,
    /// True if there are more entries than listed.
    pub truncated: bool,
}

/// Result of `show_changes`. The differences are in the content.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Changes {
    /// Number of changed files.
    pub files: usize,
    /// Number of inserted lines.
    pub insertions: usize,
    /// Number of deleted lines.
    pub deletions: usize,
    /// The changes in the order of paths.
    pub changes: Vec<Changed>,
    /// True if there are more changes or differences than shown.
    pub truncated: bool,
    /// Paths of the first files that cannot be kept, such as pipes, with the reason.
    pub skipped: Vec<String>,
    /// Number of such files.
    pub skipped_count: usize,
}

/// A change of one path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Changed {
    /// Path in the workspace. Untrusted: code may have chosen it.
    pub path: String,
    /// Kind of the change: added, modified, deleted, mode_changed, type_changed or renamed.
    pub kind: String,
    /// Previous path of a renamed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Limits of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Allowed {
    /// Limit of wall time of one call in seconds.
    pub timeout_seconds: f64,
    /// Limit of CPU time of the sandbox during one call or session in seconds; null if unlimited.
    pub cpu_seconds: Option<f64>,
    /// Memory limit in bytes; null if unlimited.
    pub memory_bytes: Option<u64>,
    /// Storage limit in bytes; null if unlimited.
    pub disk_bytes: Option<u64>,
    /// Limit of live processes and threads; null if unlimited.
    pub pids: Option<u32>,
    /// Limit of live processes, not counting threads; null if unlimited.
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
pub struct CreatedSandbox {
    /// Id of the sandbox. Keep it secret: it grants access to the sandbox.
    pub sandbox: String,
    /// The backend that created it.
    pub backend: String,
    /// The isolation level: simulated, wasm, process, container or vm.
    pub level: String,
    /// Path of the workspace in the sandbox.
    pub workspace: String,
    /// Its limits.
    pub limits: Allowed,
    /// Hosts that the sandbox may connect to; empty without network access.
    pub network: Vec<String>,
    /// Protections that are weaker than requested or absent.
    pub weaker: Vec<String>,
    /// Idle time in seconds after which it is closed.
    pub idle_seconds: f64,
}

impl CreatedSandbox {
    /// Describes a sandbox that was just created.
    pub fn new(id: &str, backend: &str, level: Level, sandbox: &dyn Sandbox, idle: std::time::Duration) -> Self {
        let network = sandbox.spec().network().hosts().into_iter().map(str::to_owned).collect();
        let less = |state| matches!(state, ProtectionState::WeakerThanRequired | ProtectionState::Absent);
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
    /// Id of the snapshot. Keep it secret: it grants access to the snapshot.
    pub snapshot: String,
    /// Id of the original sandbox, which continues to run.
    pub sandbox: String,
    /// Idle time in seconds after which the snapshot is deleted.
    pub idle_seconds: f64,
}

/// Result of `close_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Closed {
    /// Id or name of the closed sandbox, deleted snapshot or ended session.
    pub closed: String,
}

//! Arguments of the tools. Unknown fields are refused, and so is every value that would exceed the server's settings.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// Language of the code, such as python, javascript, typescript, bash or sh. The server can restrict languages.
    pub language: String,
    /// Id of the sandbox, as returned by create_sandbox. Default: the session's own sandbox, or without protocol
    /// sessions a new sandbox for this call only.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Name of a live interpreter of this sandbox, 1 to 64 letters, digits, '.', '_' and '-'. The first call with a
    /// name starts the interpreter; later calls keep its definitions. Supported for python, javascript and typescript.
    /// Cannot be combined with args, env, stdin and working_dir.
    #[serde(default)]
    pub session: Option<String>,
    /// Arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, in addition to the sandbox's minimal ones.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Standard input. Without it, the code reads end-of-file.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Start directory in the workspace.
    #[serde(default)]
    pub working_dir: String,
    /// Limit of wall time in seconds, up to the server's limit.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// Maximum number of characters of standard output and of standard error in the result, half of them from the end.
    /// Default 20,000, up to the server's limit.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
    /// Include the contents of created and changed files in the result, up to a size limit.
    #[serde(default)]
    pub file_contents: bool,
}

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// The shell line to run. It starts in the directory where the previous line ended.
    pub command: String,
    /// Id of the sandbox, as returned by create_sandbox. Default: the session's own sandbox, or without protocol
    /// sessions a new sandbox for this call only.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Start directory in the workspace, instead of the directory where the previous line ended.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// Environment variables, in addition to the sandbox's minimal ones.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Standard input. Without it, the command reads end-of-file.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Limit of wall time in seconds, up to the server's limit.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// Maximum number of characters of standard output and of standard error in the result, half of them from the end.
    /// Default 20,000, up to the server's limit.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
}

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Path of the file, relative to the workspace or starting with /workspace.
    pub path: String,
    /// Id of the sandbox. Default: the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Number of bytes to skip.
    #[serde(default)]
    pub offset: u64,
    /// Maximum number of bytes to read.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// Encoding of file contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Text.
    #[default]
    Text,
    /// Base64.
    Base64,
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Path of the file, relative to the workspace. Missing parent directories are created.
    pub path: String,
    /// New contents of the file.
    pub content: String,
    /// Encoding of the content.
    #[serde(default)]
    pub encoding: Encoding,
    /// Id of the sandbox. Default: the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// Path of the file, relative to the workspace.
    pub path: String,
    /// The text to replace, exactly as in the file. It must occur once, unless replace_all is set.
    pub old_text: String,
    /// The replacement.
    pub new_text: String,
    /// Replace every occurrence.
    #[serde(default)]
    pub replace_all: bool,
    /// Id of the sandbox. Default: the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

/// Arguments of `show_changes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowChanges {
    /// Id of the sandbox. Default: the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// Path of the directory, relative to the workspace. Default: the workspace itself.
    #[serde(default)]
    pub path: String,
    /// Number of directory levels to list, up to 32. 1 lists only the directory itself.
    #[serde(default = "one")]
    pub depth: u32,
    /// Id of the sandbox. Default: the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

fn one() -> u32 {
    1
}

/// Network access that a call may request: no more than the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// No network.
    None,
}

/// Limits of one sandbox. None may exceed the server's limit.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tighter {
    /// Limit of wall time of one call in seconds.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// Limit of CPU time in seconds, for all processes of the sandbox together during one call or session.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// Memory limit in bytes, for all processes together.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Storage limit in bytes.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Limit of live processes and threads.
    #[serde(default)]
    pub pids: Option<u32>,
    /// Limit of live processes, not counting threads. Not all isolation levels support it.
    #[serde(default)]
    pub processes: Option<u32>,
}

/// Arguments of `create_sandbox`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// Limits that are tighter than the server's.
    #[serde(default)]
    pub limits: Tighter,
    /// Set to none to create the sandbox without network access.
    #[serde(default)]
    pub network: Option<Network>,
    /// Make the workspace read-only for code. write_file can still write to it, unless it is a host directory.
    #[serde(default)]
    pub read_only: bool,
}

/// Arguments of `snapshot_sandbox` and `fork_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfSandbox {
    /// Id of the sandbox.
    pub sandbox: String,
}

/// Arguments of `restore_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreSandbox {
    /// Id of the snapshot, as returned by snapshot_sandbox.
    pub snapshot: String,
    /// Limits that are tighter than the snapshot's.
    #[serde(default)]
    pub limits: Tighter,
}

/// Arguments of `close_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseSandbox {
    /// Id of the sandbox to close.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Id of the snapshot to delete.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// Name of a live interpreter to end, which frees the name. Its sandbox, by default the session's own one, stays
    /// open.
    #[serde(default)]
    pub session: Option<String>,
}

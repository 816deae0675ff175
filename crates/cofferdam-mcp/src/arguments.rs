//! What each tool takes. A field that is not named here is refused, and so is every value that would widen what the
//! server was started with.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// Its language, such as python, javascript, typescript, bash or sh; only those that the server allows run.
    pub language: String,
    /// Id of the sandbox, as create_sandbox gave it. Without it: the session's own sandbox, or a new one for this call
    /// alone where the protocol has no sessions.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Name of a live interpreter of this sandbox, 1 to 64 letters, digits, '.', '_' and '-'. The first call with a
    /// name starts one; what a call defines is there for the next. Only python, javascript and typescript have them;
    /// args, env, stdin and working_dir cannot be given with it.
    #[serde(default)]
    pub session: Option<String>,
    /// Arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, besides the sandbox's minimal ones.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Standard input; without it the code reads end-of-file at once.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Directory inside the workspace to start in.
    #[serde(default)]
    pub working_dir: String,
    /// Seconds of real time; not more than the server allows.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// Characters that the result has of standard output and of standard error, half of them from the end; 20,000 where
    /// nothing is said, not more than the server allows.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
    /// Give the contents of files that the code made or changed, as far as they fit.
    #[serde(default)]
    pub file_contents: bool,
}

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// The shell line to run. It begins in the directory where the line before it ended.
    pub command: String,
    /// Id of the sandbox, as create_sandbox gave it. Without it: the session's own sandbox, or a new one for this call
    /// alone where the protocol has no sessions.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Directory inside the workspace to start in, instead of where the line before ended.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// Environment variables, besides the sandbox's minimal ones.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Standard input; without it the command reads end-of-file at once.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Seconds of real time; not more than the server allows.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// Characters that the result has of standard output and of standard error, half of them from the end; 20,000 where
    /// nothing is said, not more than the server allows.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
}

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Path of the file, relative to the workspace, or beginning with /workspace.
    pub path: String,
    /// Id of the sandbox; without it the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Bytes to leave out at the beginning.
    #[serde(default)]
    pub offset: u64,
    /// The most bytes to read.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// How contents are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As text.
    #[default]
    Text,
    /// In base64.
    Base64,
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Path of the file, relative to the workspace; directories above it are made.
    pub path: String,
    /// What the file is to hold.
    pub content: String,
    /// How the content is written down.
    #[serde(default)]
    pub encoding: Encoding,
    /// Id of the sandbox; without it the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// Path of the file, relative to the workspace.
    pub path: String,
    /// The text to replace, exactly as it stands in the file; it must stand there once, unless replace_all is set.
    pub old_text: String,
    /// The text to put there.
    pub new_text: String,
    /// Replace every occurrence.
    #[serde(default)]
    pub replace_all: bool,
    /// Id of the sandbox; without it the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// Path of the directory, relative to the workspace; without it the workspace itself.
    #[serde(default)]
    pub path: String,
    /// Levels of directories to go down: 1 lists the directory alone, at most 32.
    #[serde(default = "one")]
    pub depth: u32,
    /// Id of the sandbox; without it the session's own sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
}

fn one() -> u32 {
    1
}

/// A network that a call may ask for: less than what the server was started with, or the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// None at all.
    None,
}

/// Limits of one sandbox, each at most what the server was started with.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tighter {
    /// Seconds of real time that one call may take.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// CPU seconds of all processes of one call.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// Bytes of memory of all processes together.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Bytes that may be stored.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Processes and threads alive at once.
    #[serde(default)]
    pub pids: Option<u32>,
    /// Processes alive at once, without their threads; only where the server's level can limit them.
    #[serde(default)]
    pub processes: Option<u32>,
}

/// Arguments of `create_sandbox`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// Limits below those of the server.
    #[serde(default)]
    pub limits: Tighter,
    /// Do without the network that the server's sandboxes have.
    #[serde(default)]
    pub network: Option<Network>,
    /// Let code only read the workspace; write_file still fills it, unless it is a directory of the server's machine.
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
    /// Id of the snapshot, as snapshot_sandbox gave it.
    pub snapshot: String,
    /// Limits below those of the server.
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
    /// Id of the snapshot to forget.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// Name of a live interpreter to end, which frees its name. The sandbox, or the session's own one where none is
    /// given, stays.
    #[serde(default)]
    pub session: Option<String>,
}

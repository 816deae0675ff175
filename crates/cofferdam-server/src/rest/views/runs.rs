//! The documents of runs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{Completed, Exit, Posture};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CreateSandbox, StartExec};

/// A command in a sandbox of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StartRun {
    /// The sandbox. `name`, `idle` and `life` have no meaning here and are refused.
    pub sandbox: CreateSandbox,
    /// The command. Streams and terminals are refused.
    pub exec: StartExec,
}

/// Output as text or, if it is no text, in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputView {
    /// Text.
    Text(String),
    /// Bytes in base64.
    Base64(String),
}

impl OutputView {
    /// Returns the view of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// The exit.
    pub exit: Exit,
    /// Standard output.
    pub stdout: OutputView,
    /// Standard error.
    pub stderr: OutputView,
    /// The protections that were enforced, as measured.
    pub posture: Posture,
}

impl RunResult {
    pub(in crate::rest) fn new(completed: Completed, posture: Posture) -> Self {
        let Completed { exit, stdout, stderr } = completed;
        Self { exit, stdout: OutputView::of(&stdout), stderr: OutputView::of(&stderr), posture }
    }
}

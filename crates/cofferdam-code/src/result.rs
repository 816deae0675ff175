//! The result of a call, in the form that agents receive as JSON.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, EntryKind, Exit, Level, LimitKind, Limits, NetworkDenial, Posture, Protection, ProtectionState,
    SandboxId, TenantId, Usage, serde_duration,
};
use cofferdam_screen::Finding;
use cofferdam_util::{hex, sha256};
use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::RichResult;

/// Bytes. In JSON `{"text": …}`, or `{"base64": …}` if they are not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
#[schemars(with = "std::collections::BTreeMap<String, String>")]
pub struct Data(#[schemars(skip)] Bytes);

impl Data {
    /// Returns the bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns the bytes as text. Invalid UTF-8 is replaced by U+FFFD.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match std::str::from_utf8(&self.0) {
            Ok(text) => map.serialize_entry("text", text)?,
            Err(_) => map.serialize_entry("base64", &STANDARD.encode(&self.0))?,
        }
        map.end()
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CodeResult {
    /// The id of the execution, also used in the audit log.
    pub id: String,
    /// The language.
    pub language: String,
    /// Standard output.
    pub stdout: Data,
    /// Standard error.
    pub stderr: Data,
    /// The exit code; -1 after a timeout or a signal. In a session, 1 after an uncaught error.
    pub exit_code: i32,
    /// The signal that ended the program, if any.
    pub signal: Option<i32>,
    /// Wall-clock time, in seconds.
    #[serde(with = "serde_duration")]
    pub duration: Duration,
    /// True if output was dropped.
    pub truncated: bool,
    /// True if the timeout expired.
    pub timed_out: bool,
    /// True if the call was cancelled.
    pub cancelled: bool,
    /// The limit that killed the program, if any.
    pub killed_by: Option<LimitKind>,
    /// Limits that refused an operation or killed a process.
    pub limits_hit: Vec<LimitKind>,
    /// Refusals of the network policy during the call, as text in JSON.
    #[serde(serialize_with = "as_texts")]
    pub network_denials: Vec<NetworkDenial>,
    /// Resource usage; `None` for a call of a session, because usage is counted for the whole interpreter.
    pub usage: Option<Usage>,
    /// Results besides the output, in their order.
    pub results: Vec<RichResult>,
    /// Number of results dropped because they were too many, too large or malformed.
    pub results_dropped: u64,
    /// Changes of the workspace.
    pub files: Files,
    /// Findings of the static analysis; `None` if it is off or does not support the language.
    pub screening: Option<Screened>,
    /// The environment of the execution.
    pub meta: Meta,
    /// The state of the session, for a call of one.
    pub session: Option<SessionState>,
}

fn as_texts<S: Serializer>(denials: &[NetworkDenial], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(denials.iter().map(ToString::to_string))
}

impl CodeResult {
    /// Returns true if the exit code is 0 and nothing ended the program early.
    pub fn success(&self) -> bool {
        self.exit_code == 0 && self.signal.is_none() && !self.timed_out
    }

    pub(crate) fn exit(&self) -> Exit {
        Exit {
            code: self.exit_code,
            signal: self.signal,
            timed_out: self.timed_out,
            cancelled: self.cancelled,
            truncated: self.truncated,
            killed_by: self.killed_by,
            limits_hit: self.limits_hit.clone(),
            duration: self.duration,
            usage: self.usage.unwrap_or_default(),
        }
    }
}

/// The type of a file change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touched {
    /// The file is new.
    Created,
    /// The file existed and has changed.
    Changed,
    /// The file was removed.
    Removed,
}

/// A changed file of the workspace. The guest chooses the name: treat it as untrusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Path of the file in the workspace.
    pub name: String,
    /// Type of the change.
    pub change: Touched,
    /// Type of the file. Symlinks are not followed.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the contents in hexadecimal, if they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The contents, if they were requested and are within the bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<Data>,
}

/// The changes of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Files {
    /// Files that were created, changed or removed, by name.
    pub changes: Vec<FileChange>,
    /// Number of all changes, including unlisted ones.
    pub total: u64,
    /// True if all changes were found. False if the workspace exceeds the bounds of a scan.
    pub complete: bool,
}

/// The findings of the static analysis about code that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Screened {
    /// The findings.
    pub findings: Vec<Finding>,
    /// True if there are more findings.
    pub truncated: bool,
    /// The reason why the code was not analyzed, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_screened: Option<String>,
}

/// The interpreter that ran the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Runtime {
    /// Name of the program.
    pub interpreter: String,
    /// Version as the program prints it: detected before any code ran, or else as claimed by the sandbox.
    pub version: Option<String>,
}

/// The environment of an execution.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Meta {
    /// Name of the backend.
    pub backend: String,
    /// Isolation level of the backend.
    pub level: Level,
    /// Id of the sandbox.
    pub sandbox: SandboxId,
    /// The tenant.
    pub tenant: TenantId,
    /// The interpreter.
    pub runtime: Runtime,
    /// Limits of the sandbox.
    pub limits: Limits,
    /// Wall-clock timeout, in seconds.
    #[serde(with = "serde_duration")]
    pub timeout: Duration,
    /// Maximum size of the output.
    pub max_output: ByteSize,
    /// SHA-256 of the posture's JSON, in hexadecimal.
    pub posture: String,
    /// Protections that are weaker than requested, or absent.
    pub weaker: Vec<Protection>,
}

/// The session of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionState {
    /// Id of the session.
    pub id: String,
    /// Number of calls so far, including this one.
    pub calls: u64,
    /// The reason why the session ended, if this call ended it.
    pub lost: Option<String>,
    /// True if the code itself ended the interpreter, as by `exit()`.
    pub exited: bool,
}

/// Returns the SHA-256 of a posture, over its JSON without spaces, in hexadecimal.
pub fn posture_digest(posture: &Posture) -> String {
    sha256::of(serde_json::to_vec(posture).unwrap_or_default())
}

/// Returns the name of a limit in JSON.
pub(crate) fn limit_name(limit: LimitKind) -> String {
    serde_json::to_value(limit).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(crate) fn weaker(posture: &Posture) -> Vec<Protection> {
    let less = |state| matches!(state, ProtectionState::WeakerThanRequired | ProtectionState::Absent);
    posture.items().iter().filter(|item| less(item.state)).map(|item| item.protection).collect()
}

/// Returns a new unpredictable id.
pub(crate) fn random_id() -> cofferdam_contract::Result<String> {
    hex::random(16).map_err(crate::error::random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_or_base64() {
        let json = |bytes: &'static [u8]| serde_json::to_string(&Data::from(Bytes::from_static(bytes))).unwrap();
        assert_eq!(json(b"a\n"), r#"{"text":"a\n"}"#);
        assert_eq!(json(b"\xff"), r#"{"base64":"/w=="}"#);
    }
}

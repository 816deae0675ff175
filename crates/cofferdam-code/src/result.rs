//! What came of a call, in the form that goes to agents as JSON.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, EntryKind, Exit, Level, LimitKind, Limits, Posture, Protection, ProtectionState, SandboxId, TenantId,
    Usage, serde_duration,
};
use cofferdam_screen::Finding;
use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::RichResult;

/// Bytes; in JSON `{"text": …}`, or `{"base64": …}` where they are not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
#[schemars(with = "std::collections::BTreeMap<String, String>")]
pub struct Data(#[schemars(skip)] Bytes);

impl Data {
    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// As text; what is not UTF-8 is replaced.
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

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CodeResult {
    /// Names the execution, also in the audit log.
    pub id: String,
    /// The language.
    pub language: String,
    /// Standard output.
    pub stdout: Data,
    /// Standard error.
    pub stderr: Data,
    /// The exit code; -1 after a time-out or a signal. In a session 1 after an error that nobody caught.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Real time, in seconds.
    #[serde(with = "serde_duration")]
    pub duration: Duration,
    /// Whether output was dropped.
    pub truncated: bool,
    /// Whether the time ran out.
    pub timed_out: bool,
    /// Whether somebody ended it.
    pub cancelled: bool,
    /// The limit that killed it.
    pub killed_by: Option<LimitKind>,
    /// Limits at which something was refused or killed.
    pub limits_hit: Vec<LimitKind>,
    /// What it used; `None` for a call of a session, whose interpreter counts as one.
    pub usage: Option<Usage>,
    /// Results besides the output, in their order.
    pub results: Vec<RichResult>,
    /// Results that were too many, too large or not well-formed.
    pub results_dropped: u64,
    /// What the code did to the workspace.
    pub files: Files,
    /// What screening found, unless it is off or does not know the language.
    pub screening: Option<Screened>,
    /// Where and how it ran.
    pub meta: Meta,
    /// The session, if it was a call of one.
    pub session: Option<SessionState>,
}

impl CodeResult {
    /// Exit code 0, and nothing ended it early.
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

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touched {
    /// It was not there before.
    Created,
    /// It was there, and is another.
    Changed,
    /// It is gone.
    Removed,
}

/// One file of the workspace. Its name is the code's: treat it as hostile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Its path in the workspace.
    pub name: String,
    /// What became of it.
    pub change: Touched,
    /// What it is; links are not followed.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its contents, where they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its contents, where they were asked for and fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<Data>,
}

/// What the code did to the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Files {
    /// Files that were made, changed or removed, by name.
    pub changes: Vec<FileChange>,
    /// How many there are, those that are not named included.
    pub total: u64,
    /// Whether all that changed was seen: false where there was more to look at than is allowed.
    pub complete: bool,
}

/// What screening said about code that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Screened {
    /// What is not wanted.
    pub findings: Vec<Finding>,
    /// Whether there is more than that.
    pub truncated: bool,
    /// Why the code was not screened, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_screened: Option<String>,
}

/// What ran the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Runtime {
    /// The program.
    pub interpreter: String,
    /// Its version, in its own words: from a detection before any code ran, else as the sandbox claims.
    pub version: Option<String>,
}

/// Where and how it ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Meta {
    /// The backend.
    pub backend: String,
    /// Its level.
    pub level: Level,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Whose work it was.
    pub tenant: TenantId,
    /// What ran the code.
    pub runtime: Runtime,
    /// The sandbox's limits.
    pub limits: Limits,
    /// Real time that was allowed, in seconds.
    #[serde(with = "serde_duration")]
    pub timeout: Duration,
    /// Bytes of output that were allowed.
    pub max_output: ByteSize,
    /// SHA-256 of the posture's JSON.
    pub posture: String,
    /// Protections that are weaker than asked, or absent.
    pub weaker: Vec<Protection>,
}

/// The session that a call belonged to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionState {
    /// Its id.
    pub id: String,
    /// How many calls it has had, this one included.
    pub calls: u64,
    /// Why it is gone, if this call ended it.
    pub lost: Option<String>,
    /// Whether the code ended the interpreter itself, as by `exit()`.
    pub exited: bool,
}

/// SHA-256 of a posture, over its JSON without spaces, in hexadecimal digits.
pub fn posture_digest(posture: &Posture) -> String {
    hex(&Sha256::digest(serde_json::to_vec(posture).unwrap_or_default()))
}

/// The word that a limit is in JSON.
pub(crate) fn limit_name(limit: LimitKind) -> String {
    serde_json::to_value(limit).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(crate) fn weaker(posture: &Posture) -> Vec<Protection> {
    let less = |state| matches!(state, ProtectionState::WeakerThanAsked | ProtectionState::Absent);
    posture.items().iter().filter(|item| less(item.state)).map(|item| item.protection).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A new id that nobody can guess.
pub(crate) fn random_id() -> cofferdam_contract::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(crate::error::random)?;
    Ok(hex(&bytes))
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

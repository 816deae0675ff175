//! The records of the log. They contain hashes of code and commands, but neither their text nor an environment.

use serde::{Deserialize, Serialize};

use crate::{Action, ApiCall, Digest, Error, PluginDenied, Result, Text, Timestamp};

/// The most files that a record names.
pub const MAX_FILES: usize = 32;
/// The most denials that a record names.
pub const MAX_DENIALS: usize = 16;

/// The id of an execution: 1 to 64 ASCII letters, digits, `-` and `_`, starting with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ExecutionId(String);

impl ExecutionId {
    /// Creates an id. Fails for a text that is not safe as a file name.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_');
        if plain && text.len() <= 64 && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric) {
            return Ok(Self(text));
        }
        let reason = "it must be 1 to 64 letters, digits, - and _, and start with a letter or digit";
        Err(Error::Invalid { what: "the execution id", reason })
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<ExecutionId> for String {
    fn from(id: ExecutionId) -> Self {
        id.0
    }
}

impl TryFrom<String> for ExecutionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

/// An execution before its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The id of the execution.
    pub id: ExecutionId,
    /// The tenant.
    pub tenant: Option<Text<128>>,
    /// The time of the start.
    pub start: Timestamp,
    /// The backend, such as `process`.
    pub backend: Text<64>,
    /// The isolation level of the backend, such as `process`.
    pub level: Text<32>,
    /// The interpreter of the code, such as `python`.
    pub runtime: Option<Text<64>>,
    /// The runtime's version.
    pub version: Option<Text<64>>,
    /// The program, identified by its hash.
    pub program: Program,
    /// The limits.
    pub limits: Limits,
}

/// A program, identified by its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The kind: code, a command or a snapshot.
    pub of: ProgramKind,
    /// The SHA-256. For code, of its bytes. For a command, of the length (8 bytes, little-endian) and the bytes of each
    /// argument. For a snapshot, as the caller defines.
    pub sha256: Digest,
    /// The size in bytes of the code, of all arguments, or of the snapshot; 0 if unknown.
    pub bytes: u64,
}

/// The kinds of a [`Program`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Source text.
    Code,
    /// The arguments of a command, including its name.
    Command,
    /// The state that a sandbox was restored from.
    Snapshot,
}

impl Program {
    /// Hashes source text.
    pub fn code(text: &[u8]) -> Self {
        Self { of: ProgramKind::Code, sha256: Digest::of(text), bytes: text.len() as u64 }
    }

    /// Hashes the arguments of a command. Lengths are included, so that `["a b"]` and `["a", "b"]` have different
    /// hashes.
    pub fn command<A: AsRef<[u8]>>(arguments: impl IntoIterator<Item = A>) -> Self {
        let mut hashed = Vec::new();
        let mut bytes = 0;
        for argument in arguments {
            let argument = argument.as_ref();
            bytes += argument.len() as u64;
            hashed.extend_from_slice(&(argument.len() as u64).to_le_bytes());
            hashed.extend_from_slice(argument);
        }
        Self { of: ProgramKind::Command, sha256: Digest::of(hashed), bytes }
    }
}

/// The limits of an execution. A missing limit was not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Wall-clock time, in microseconds.
    pub wall_us: Option<u64>,
    /// CPU time, in microseconds.
    pub cpu_us: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Stored bytes.
    pub disk_bytes: Option<u64>,
    /// Number of live processes and threads.
    pub processes: Option<u64>,
    /// Maximum size of the output, in bytes.
    pub output_bytes: Option<u64>,
}

/// The outcome of an execution that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The end of the process.
    pub exit: Exit,
    /// Wall-clock time from start to end, in microseconds.
    pub duration_us: u64,
    /// The resource usage.
    pub usage: Usage,
    /// The SHA-256 of the posture, as the caller defines.
    pub posture: Option<Digest>,
    /// The changed files; missing if the workspace was not compared.
    pub files: Option<Listed<FileTouched, MAX_FILES>>,
    /// The denied operations.
    pub denials: Listed<Denial, MAX_DENIALS>,
    /// The artifact with code and result, if artifacts are stored.
    pub artifact: Option<Artifact>,
    /// The backend's id of the sandbox; missing if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Text<128>>,
    /// The origin of the sandbox, if it was created from the state of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

/// The origin of a restored sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The sandbox that the state was taken from, if it is known.
    pub from: Option<Text<128>>,
    /// True if programs of that sandbox continue in this one. They were not analyzed here, and have no records of their
    /// own.
    pub programs: bool,
}

/// The end of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// The exit code; missing if there is none, as after a signal.
    pub code: Option<i32>,
    /// The signal that ended the program, if any.
    pub signal: Option<i32>,
    /// The limit that ended the program, such as `memory`.
    pub killed_by: Option<Text<32>>,
    /// True if the wall-clock timeout expired.
    pub timed_out: bool,
    /// True if the caller cancelled the execution.
    pub cancelled: bool,
    /// True if output was dropped.
    pub truncated: bool,
    /// The error of the sandbox, if the sandbox failed and not the program.
    pub failed: Option<Text<256>>,
}

/// The resource usage of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// CPU time, in microseconds; missing if it was not measured.
    pub cpu_us: Option<u64>,
    /// Peak memory use, in bytes; missing if the backend cannot measure it.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes of output, including dropped ones; missing if they were not counted.
    pub output_bytes: Option<u64>,
}

/// The first items of a list, and the total number of items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed<T, const MAX: usize> {
    /// The number of all items.
    count: u64,
    /// The first items.
    first: Vec<T>,
}

impl<T, const MAX: usize> Default for Listed<T, MAX> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T, const MAX: usize> FromIterator<T> for Listed<T, MAX> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut listed = Self::default();
        for item in all {
            listed.push(item);
        }
        listed
    }
}

impl<T, const MAX: usize> Listed<T, MAX> {
    /// Adds an item. Items beyond the maximum are only counted.
    pub fn push(&mut self, item: T) {
        self.count += 1;
        if self.first.len() < MAX {
            self.first.push(item);
        }
    }

    /// Adds to the count without adding items.
    pub fn add_unnamed(&mut self, more: u64) {
        self.count = self.count.saturating_add(more);
    }

    /// Returns the total number of items.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the listed items.
    pub fn named(&self) -> &[T] {
        &self.first
    }

    /// Drops half of the listed items. Returns false if there are none.
    pub(crate) fn halve(&mut self) -> bool {
        let some = !self.first.is_empty();
        self.first.truncate(self.first.len() / 2);
        some
    }
}

/// A file that an execution created, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTouched {
    /// The name in the workspace.
    pub name: Text<256>,
    /// The type of the change.
    pub change: Change,
    /// The current size, in bytes.
    pub bytes: u64,
    /// The SHA-256 of the current contents, if it was computed.
    pub sha256: Option<Digest>,
}

/// The type of a file change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A new file.
    Created,
    /// A changed file.
    Changed,
    /// A removed file.
    Removed,
}

/// An operation that an isolation boundary refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The boundary or rule, such as `network`.
    pub by: Text<64>,
    /// The refused operation or its object, such as a host name. Must contain no secret.
    pub what: Text<128>,
    /// The number of times.
    pub times: u64,
}

/// The artifact of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Artifact {
    /// A file in the log's `artifacts` directory.
    Stored {
        /// The file's name in that directory.
        file: String,
        /// SHA-256 of the file.
        sha256: Digest,
        /// The size in bytes.
        bytes: u64,
        /// The number of redacted secrets.
        redacted: u64,
        /// True if bytes beyond the maximum size were dropped.
        truncated: bool,
    },
    /// An artifact that could not be stored.
    Lost {
        /// The reason.
        reason: Text<256>,
    },
}

/// A record of the log. No field of a record is called `v`, `seq`, `prev`, `mac` or `hash`, which are fields of the
/// line itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// The first line of a segment.
    Segment(SegmentStart),
    /// The begin of an execution.
    Begin(Box<Subject>),
    /// The end of an execution.
    End(Box<End>),
    /// An execution that was never started after its begin record.
    Cancelled(Cancelled),
    /// A connection or request of a sandbox.
    Network(Box<Network>),
    /// Connections and requests without a record.
    NetworkLost(NetworkLost),
    /// A request that a plugin's manifest does not permit.
    PluginDenied(Box<PluginDenied>),
    /// A call of a server's API.
    Call(Box<ApiCall>),
    /// The begin or the end of an action of a caller.
    Action(Box<Action>),
    /// A line that a crash left unfinished and that was set aside.
    Torn(Torn),
    /// A gap: lines that are known to have been written are missing.
    Gap(Gap),
    /// An announcement that old segments will be removed.
    Removed(Removed),
    /// A record kind of a later version.
    #[serde(other)]
    Unknown,
}

/// The first line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentStart {
    /// The number of the segment, from 1.
    pub segment: u32,
    /// The time of creation.
    pub time: Timestamp,
    /// The file name of the previous segment. The hash of its last line is the `prev` of this line.
    pub after: Option<String>,
    /// The identifier of the log's key; missing without a key.
    pub key: Option<Digest>,
}

/// An execution that has ended. Repeats the content of its begin record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The number of the begin record's line; missing if that could not be written.
    pub begin: Option<u64>,
    /// The execution.
    #[serde(flatten)]
    pub subject: Subject,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// An execution that had begun and was never started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// The number of the begin record's line.
    pub begin: u64,
    /// The execution.
    pub id: ExecutionId,
    /// The tenant.
    pub tenant: Option<Text<128>>,
    /// The time of the cancellation.
    pub time: Timestamp,
    /// The reason.
    pub reason: Text<256>,
}

/// A connection or request that a network policy allowed or refused. A connection is recorded at its end, and a request
/// at its begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The backend's id of the sandbox.
    pub sandbox: Text<128>,
    /// The tenant.
    pub tenant: Text<128>,
    /// The time.
    pub time: Timestamp,
    /// The name or address as the guest named it.
    pub host: Text<256>,
    /// The port.
    pub port: u16,
    /// The address of the server, if there was a connection to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::IpAddr>,
    /// `any`, `tls`, `https` or `http`.
    pub protocol: Text<16>,
    /// The method of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Text<32>>,
    /// The path of a request, without the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Text<1024>>,
    /// True if the policy allowed it.
    pub allowed: bool,
    /// The rule that allowed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Text<256>>,
    /// The reason of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<512>>,
    /// `displaced` at the end of a connection whose place another sandbox took, `unreachable` if the server could not be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Text<16>>,
    /// Bytes that the guest sent on the connection so far.
    pub sent_bytes: u64,
    /// Bytes that the guest received on the connection so far.
    pub received_bytes: u64,
    /// Time since the begin of the connection, in milliseconds.
    pub duration_ms: u64,
    /// Requests on the connection so far. Of very many, only some have a record of their own.
    #[serde(default)]
    pub requests: u64,
}

/// Connections and requests that came faster than they could be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkLost {
    /// The backend's id of the sandbox.
    pub sandbox: Text<128>,
    /// The tenant.
    pub tenant: Text<128>,
    /// The time.
    pub time: Timestamp,
    /// Their number.
    pub count: u64,
}

/// A record about a sandbox rather than one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxRecord {
    /// A connection or request.
    Event(Box<Network>),
    /// Connections and requests without a record.
    Lost(NetworkLost),
    /// A denied request of a plugin.
    PluginDenied(Box<PluginDenied>),
    /// A call of a server's API.
    Call(Box<ApiCall>),
    /// The begin or the end of an action of a caller.
    Action(Box<Action>),
}

impl From<SandboxRecord> for Record {
    fn from(record: SandboxRecord) -> Self {
        match record {
            SandboxRecord::Event(event) => Self::Network(event),
            SandboxRecord::Lost(lost) => Self::NetworkLost(lost),
            SandboxRecord::PluginDenied(denied) => Self::PluginDenied(denied),
            SandboxRecord::Call(call) => Self::Call(call),
            SandboxRecord::Action(action) => Self::Action(action),
        }
    }
}

/// Bytes at the end of a segment that are not a complete line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Torn {
    /// The file that they were moved to.
    pub file: String,
    /// The segment that they were in.
    pub segment: u32,
    /// Their offset in the segment.
    pub offset: u64,
    /// Their number.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: Digest,
    /// The time of their removal.
    pub time: Timestamp,
}

/// Lines that had been written and are missing at this position. They were lost in a power failure, or cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The number of the last line that had been written; equal to `found` if it is unknown.
    pub written: u64,
    /// Its hash; zero if it is unknown.
    pub written_hash: Digest,
    /// The number of the last line that was found.
    pub found: u64,
    /// The time of the discovery.
    pub time: Timestamp,
}

/// Old segments that retention removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The number of the last removed segment.
    pub through: u32,
    /// The hash of the last removed line.
    pub last_hash: Digest,
    /// The time of the removal.
    pub time: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_differ_and_ids_name_files() {
        assert_ne!(Program::command(["a b"]), Program::command(["a", "b"]));
        assert_ne!(Program::command(["a", ""]), Program::command(["a"]));
        assert_eq!(Program::code(b"abc").sha256, Digest::of("abc"));
        assert!(ExecutionId::new("exec-1_B").is_ok());
        for bad in ["", "-a", ".", "..", "a/b", "a.b", "é", "a\n", &"x".repeat(65)] {
            assert!(ExecutionId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn truncated_lists_count_unnamed_items() {
        let mut listed: Listed<u32, 3> = (0..10).collect();
        listed.add_unnamed(5);
        assert_eq!((listed.count(), listed.named()), (15, &[0, 1, 2][..]));
        assert!(listed.halve() && listed.halve() && !listed.halve());
        assert_eq!(listed.count(), 15);
    }
}

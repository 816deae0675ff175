//! The records in the lines. They contain hashes of code and commands, and no text of them or of an environment.

use serde::{Deserialize, Serialize};

use crate::{Digest, Error, Result, Text, Timestamp};

/// The most files that a record names.
pub const MAX_FILES: usize = 32;
/// The most denials that a record names.
pub const MAX_DENIALS: usize = 16;

/// The name of an execution: 1 to 64 letters, digits, `-` and `_` of ASCII, of which the first is a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ExecutionId(String);

impl ExecutionId {
    /// Refuses what could not name a file.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_');
        if plain && text.len() <= 64 && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric) {
            return Ok(Self(text));
        }
        let reason = "it must be 1 to 64 letters, digits, - and _, and begin with a letter or digit";
        Err(Error::Invalid { what: "the execution id", reason })
    }

    /// The text.
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

/// An execution, as known before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The execution.
    pub id: ExecutionId,
    /// The tenant.
    pub tenant: Option<Text<128>>,
    /// The time of the start.
    pub start: Timestamp,
    /// The backend, such as `process`.
    pub backend: Text<64>,
    /// The backend's level of isolation, such as `2`.
    pub level: Text<32>,
    /// The interpreter of the code, such as `python`.
    pub runtime: Option<Text<64>>,
    /// The runtime's version.
    pub version: Option<Text<64>>,
    /// The program, by its hash.
    pub program: Program,
    /// The limits.
    pub limits: Limits,
}

/// A program, by its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Code, a command or a snapshot.
    pub of: ProgramKind,
    /// Of code: SHA-256 of its bytes. Of a command: of each argument's length (8 bytes, least first) and bytes. Of a
    /// snapshot: as the caller defines.
    pub sha256: Digest,
    /// Bytes of the code, of all arguments, or of the snapshot where they are known, else 0.
    pub bytes: u64,
}

/// The kinds of a [`Program`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Source text.
    Code,
    /// A command's arguments, its name included.
    Command,
    /// The state that a sandbox was restored from.
    Snapshot,
}

impl Program {
    /// The hash of source text.
    pub fn code(text: &[u8]) -> Self {
        Self { of: ProgramKind::Code, sha256: Digest::of(text), bytes: text.len() as u64 }
    }

    /// The hash of a command's arguments. Their lengths count, so that `["a b"]` is another command than `["a", "b"]`.
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

/// Limits of an execution. A missing one was not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Real time, in microseconds.
    pub wall_us: Option<u64>,
    /// Processor time, in microseconds.
    pub cpu_us: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Stored bytes.
    pub disk_bytes: Option<u64>,
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// Bytes of output that are kept.
    pub output_bytes: Option<u64>,
}

/// The outcome of an execution that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The end of the process.
    pub exit: Exit,
    /// Real time from start to end, in microseconds.
    pub duration_us: u64,
    /// The resources that it used.
    pub usage: Usage,
    /// SHA-256 of the posture, as the caller defines.
    pub posture: Option<Digest>,
    /// The files that it touched; missing if they were not compared.
    pub files: Option<Listed<FileTouched, MAX_FILES>>,
    /// The denied operations.
    pub denials: Listed<Denial, MAX_DENIALS>,
    /// Code and result, where they are kept.
    pub artifact: Option<Artifact>,
    /// The sandbox, by the name that its backend gave it; missing where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Text<128>>,
    /// The origin of the sandbox, if it was created from another's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

/// The origin of a restored sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The sandbox whose state it was, where that is known.
    pub from: Option<Text<128>>,
    /// Set if programs that ran in that sandbox continue in this one. They were not screened here, and have no line of
    /// their own.
    pub programs: bool,
}

/// The end of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// The exit code; missing if it had none, as after a signal.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The limit that ended it, such as `memory`.
    pub killed_by: Option<Text<32>>,
    /// Real time ran out.
    pub timed_out: bool,
    /// The caller cancelled it.
    pub cancelled: bool,
    /// Output was dropped.
    pub truncated: bool,
    /// The sandbox failed, not the program: what was wrong.
    pub failed: Option<Text<256>>,
}

/// The resources that an execution used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Processor time, in microseconds; missing if it was not measured.
    pub cpu_us: Option<u64>,
    /// The most memory at once, in bytes; missing if the backend cannot measure it.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes of output, those that were dropped included; missing if they were not counted.
    pub output_bytes: Option<u64>,
}

/// The first items of a list, and the number of all.
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
    /// Adds an item. Beyond the maximum it is only counted.
    pub fn push(&mut self, item: T) {
        self.count += 1;
        if self.first.len() < MAX {
            self.first.push(item);
        }
    }

    /// Counts more items without naming them.
    pub fn add_unnamed(&mut self, more: u64) {
        self.count = self.count.saturating_add(more);
    }

    /// Returns the number of all items.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the named items.
    pub fn named(&self) -> &[T] {
        &self.first
    }

    /// Drops half of the named items. Returns false if there are none.
    pub(crate) fn halve(&mut self) -> bool {
        let some = !self.first.is_empty();
        self.first.truncate(self.first.len() / 2);
        some
    }
}

/// A file that an execution made, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTouched {
    /// Its name in the workspace.
    pub name: Text<256>,
    /// The change.
    pub change: Change,
    /// Its size now, in bytes.
    pub bytes: u64,
    /// SHA-256 of its contents now, if it was computed.
    pub sha256: Option<Digest>,
}

/// A change of a file.
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
        /// The file's name there.
        file: String,
        /// SHA-256 of the file.
        sha256: Digest,
        /// Its size.
        bytes: u64,
        /// Secrets that were replaced in it.
        redacted: u64,
        /// Bytes that did not fit were dropped.
        truncated: bool,
    },
    /// An artifact that could not be stored.
    Lost {
        /// The reason.
        reason: Text<256>,
    },
}

/// One line of the log. No field of a record is called `v`, `seq`, `prev`, `mac` or `hash`: those are the line's own.
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
    /// A line that a crash left unfinished was set aside.
    Torn(Torn),
    /// Lines that a writer knows of are missing.
    Gap(Gap),
    /// Old segments are about to be removed.
    Removed(Removed),
    /// A kind of a later version.
    #[serde(other)]
    Unknown,
}

/// The first line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentStart {
    /// Its number, from 1.
    pub segment: u32,
    /// The time of its creation.
    pub time: Timestamp,
    /// The file name of the segment before. Its last line's hash is this line's `prev`.
    pub after: Option<String>,
    /// The identifier of the log's key; missing without a key.
    pub key: Option<Digest>,
}

/// An execution that has ended. Repeats the content of its begin record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The number of its begin record's line; missing if that could not be written.
    pub begin: Option<u64>,
    /// The execution.
    #[serde(flatten)]
    pub subject: Subject,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Something that had begun and was never started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// The number of its begin record's line.
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

/// Bytes at the end of a segment that were no whole line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Torn {
    /// The file that holds them now.
    pub file: String,
    /// The segment that held them.
    pub segment: u32,
    /// Their offset.
    pub offset: u64,
    /// Their number.
    pub bytes: u64,
    /// SHA-256 of them.
    pub sha256: Digest,
    /// The time of their removal.
    pub time: Timestamp,
}

/// Lines that are missing at this place, and had been written: they were lost in a power cut, or cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The number of the last line that had been written; where that was not known any more, as `found`.
    pub written: u64,
    /// Its hash; zero where it was not known.
    pub written_hash: Digest,
    /// The number of the last line that was still there.
    pub found: u64,
    /// The time of the discovery.
    pub time: Timestamp,
}

/// Old segments that retention removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// All segments up to this number.
    pub through: u32,
    /// The hash of the last line removed.
    pub last_hash: Digest,
    /// The time of the removal.
    pub time: Timestamp,
}

impl Record {
    /// Returns the execution, if the line has one.
    pub fn id(&self) -> Option<&ExecutionId> {
        match self {
            Self::Begin(subject) => Some(&subject.id),
            Self::End(end) => Some(&end.subject.id),
            Self::Cancelled(cancelled) => Some(&cancelled.id),
            _ => None,
        }
    }

    /// Returns the tenant, if the line has one.
    pub fn tenant(&self) -> Option<&str> {
        let tenant = match self {
            Self::Begin(subject) => &subject.tenant,
            Self::End(end) => &end.subject.tenant,
            Self::Cancelled(cancelled) => &cancelled.tenant,
            _ => return None,
        };
        tenant.as_ref().map(Text::as_str)
    }

    /// Returns the time of the event; for an execution, its start.
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Segment(line) => Some(line.time),
            Self::Begin(subject) => Some(subject.start),
            Self::End(end) => Some(end.subject.start),
            Self::Cancelled(line) => Some(line.time),
            Self::Torn(line) => Some(line.time),
            Self::Gap(line) => Some(line.time),
            Self::Removed(line) => Some(line.time),
            Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart_and_ids_name_files() {
        assert_ne!(Program::command(["a b"]), Program::command(["a", "b"]));
        assert_ne!(Program::command(["a", ""]), Program::command(["a"]));
        assert_eq!(Program::code(b"abc").sha256, Digest::of("abc"));
        assert!(ExecutionId::new("exec-1_B").is_ok());
        for bad in ["", "-a", ".", "..", "a/b", "a.b", "é", "a\n", &"x".repeat(65)] {
            assert!(ExecutionId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_count_what_they_do_not_name() {
        let mut listed: Listed<u32, 3> = (0..10).collect();
        listed.add_unnamed(5);
        assert_eq!((listed.count(), listed.named()), (15, &[0, 1, 2][..]));
        assert!(listed.halve() && listed.halve() && !listed.halve());
        assert_eq!(listed.count(), 15);
    }
}

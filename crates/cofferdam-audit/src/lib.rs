//! An append-only log of executions, one JSON line each, chained by hash.
//!
//! [`Log`] writes the log: [`Log::reserve`] before an execution starts, [`Reservation::commit`] after it has ended.
//! [`verify`] checks that the log is unchanged, and [`query`] finds lines in it. `docs/audit.md` describes the format
//! and its guarantees.
//!
//! The crate makes no decision about executions and knows no backend. Its records have no field for the text of code,
//! of a command or of an environment: they identify a program by its hash. They contain tenant, limits, exit, usage and
//! names of changed files. Artifacts, which are separate files, contain code and results.
//!
//! # Where to look
//!
//! - The format of a line, and what its hash covers: `line.rs`. The records: `record.rs`, `calls.rs`, `fields.rs`.
//! - Writing: `writer/mod.rs`. Verification: `verify.rs`. Access to files: `files.rs`.
//!
//! # Example
//!
//! ```
//! use cofferdam_audit::*;
//!
//! # fn main() -> Result<()> {
//! # let directory = tempfile::tempdir().expect("a directory");
//! # let path = directory.path().join("audit");
//! let log = Log::open(Config::new(&path))?;
//! let mut reservation = log.reserve(Subject {
//!     id: ExecutionId::new("exec-1")?,
//!     tenant: Some("acme".into()),
//!     start: Timestamp::now(),
//!     backend: "process".into(),
//!     level: "process".into(),
//!     runtime: Some("python".into()),
//!     version: Some("3.13.1".into()),
//!     program: Program::code(b"print(1)"),
//!     limits: Limits { wall_us: Some(60_000_000), ..Limits::default() },
//! })?;
//! // The execution runs here.
//! let head = reservation.commit(Outcome {
//!     exit: Exit { code: Some(0), ..Exit::default() },
//!     duration_us: 21_500,
//!     usage: Usage { cpu_us: Some(18_000), peak_memory_bytes: Some(9 << 20), output_bytes: Some(2) },
//!     posture: None,
//!     files: None,
//!     denials: Listed::default(),
//!     artifact: None,
//!     sandbox: None,
//!     restored: None,
//! })?;
//!
//! let report = verify(&path, &Expect { head: Some(head.hash), ..Expect::default() })?;
//! assert_eq!(report.verdict, Verdict::Whole);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod artifact;
mod calls;
mod config;
mod error;
mod fields;
mod files;
mod hash;
mod head;
mod key;
mod line;
mod log;
mod names;
mod query;
mod record;
mod redact;
mod report;
mod segment;
mod synchronise;
mod text;
mod time;
mod verify;
mod writer;

pub use artifact::ArtifactWriter;
pub use calls::{Action, ActionState, ApiCall, MAX_RULES, PluginDenied, PolicySet};
pub use config::{Config, Mandatory, Sync};
pub use error::{Error, Result};
pub use hash::{Digest, NotADigest};
pub use head::Head;
pub use key::Key;
pub use log::{Log, Reservation};
pub use query::{Entry, Filter, Page, Part, Query, page, query};
pub use record::{
    Artifact, Cancelled, Change, Denial, End, ExecutionId, Exit, FileTouched, Gap, Limits, Listed, MAX_DENIALS,
    MAX_FILES, Network, NetworkLost, Outcome, Program, ProgramKind, Record, Removed, Restored, SandboxRecord,
    SegmentStart, Subject, Torn, Usage,
};
pub use redact::{RedactionStream, Redactor};
pub use report::{Counts, Finding, PartReport, Report, Verdict, Weight};
pub use text::Text;
pub use time::{NotATime, Timestamp};
pub use verify::{Expect, verify};
pub use writer::Notice;

//! Code execution for agents: code in a language, in a sandbox of any backend, with structured results.
//!
//! [`Executor::execute`] takes a [`CodeRequest`] and returns a [`CodeResult`]: output, exit, results such as the value
//! of the last expression, changed files. Before it starts code, it runs the static analysis and writes to the audit
//! log. [`Sessions`] keep an interpreter alive between calls. [`BashTool`] runs the shell lines of a model and answers
//! with one text.
//!
//! The crate uses sandboxes through the contract only and knows no backend. It provides no isolation. Data from inside
//! is bounded and strictly parsed, and affects nothing besides the results. `docs/code.md` describes all inputs and
//! outputs.
//!
//! # Where to look
//!
//! - One execution: `executor.rs`. Executions that the caller follows: `execution.rs`. Bounds of a call: `bounds.rs`.
//! - The wrapper around the code in the sandbox: `bootstrap/`. The parser of its results: `rich.rs`, which is pure.
//! - Changed files: `files.rs`.
//! - Sessions: `session/mod.rs`; detection of the end of a call: `session/wire.rs`, which is pure.
//! - Audit records: `audit.rs`; those of sandboxes from snapshots: `restore.rs`.
#![forbid(unsafe_code)]

mod audit;
mod bash;
mod bootstrap;
mod bounds;
mod config;
mod error;
mod execution;
mod executor;
mod files;
mod head_tail;
mod language;
mod line;
mod recorded;
mod request;
mod restore;
mod result;
mod rich;
mod runtime;
mod screening;
mod session;

pub use audit::{AuditConfig, AuditSync};
pub use bash::{BashConfig, BashTool};
pub use bounds::Bounds;
pub use config::{CodeConfig, Warn};
pub use execution::{Execution, ExecutionOutput, Job, OnScreened, Oversight, Started};
pub use executor::{BackendProfile, Executor, OnOutput};
pub use head_tail::HeadTail;
pub use language::{Language, Languages, MODULE, MODULE_INTERPRETER, Results};
pub use line::Line;
pub use recorded::{NetworkCut, NetworkLog, NetworkRecording};
pub use request::{CodeRequest, Contents, Secret, Secrets, Want};
pub use restore::Origin;
pub use result::{CodeResult, Data, FileChange, Files, Meta, Runtime, Screened, SessionState, Touched, posture_digest};
pub use rich::{RichKind, RichResult};
pub use screening::{ScreeningConfig, ScreeningMode};
pub use session::{CodeSession, SessionBounds, Sessions};

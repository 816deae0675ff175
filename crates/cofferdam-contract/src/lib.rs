//! The contract between frontends and backends.
//!
//! A frontend (CLI, server, plugin host) builds a [`Spec`] and an [`ExecRequest`]. A [`Backend`] turns the spec into a
//! [`Sandbox`], and the sandbox turns the request into an [`ExecHandle`]. Output, an [`Exit`] and the [`Posture`] come back.
//! The crate knows no backend, no tenant's quota and no frontend.
//!
//! # Where to look
//!
//! - Traits: `backend.rs` for [`Backend`] and [`Sandbox`], `warm.rs` for prepared sandboxes, `handle.rs` for execs.
//! - Values: one file each, such as `spec.rs`, `exec.rs`, `limits.rs`, `posture.rs`, `exit.rs`, `error.rs`.
//! - Bounded output rings: `output.rs`.
//! - When an exec is ended, and its exit: `supervise.rs`, which is pure.
//! - CPU time of execs that share a counter: `shares.rs`, which is pure.
#![forbid(unsafe_code)]

mod backend;
mod error;
mod exec;
mod exit;
mod files;
mod handle;
mod limits;
mod output;
mod posture;
pub mod shares;
mod snapshot;
mod spec;
pub mod supervise;
mod units;
mod warm;

pub use backend::{Backend, Capabilities, Capability, Completed, Level, MAX_SKIPPED, Sandbox, SandboxUsage, collect};
pub use error::{Error, ErrorData, ErrorKind, Fault, Result, Retry, after_close};
pub use exec::{
    Command, DEFAULT_MAX_OUTPUT, EnvDelta, ExecRequest, ExecRequestBuilder, MAX_ARGUMENT_BYTES, Script, Stdin,
    TerminalSize,
};
pub use exit::{Exit, Usage};
pub use files::{DirEntry, EntryKind, FileReader, SandboxPath};
pub use handle::{DEFAULT_CANCEL_GRACE, ExecControl, ExecDriver, ExecHandle, ExecId, ExitWatch, StdinWriter};
pub use limits::{LimitKind, Limits, MAX_PROCESSES};
pub use output::{Chunk, OutputEvent, OutputStream, OutputSubscription, Publisher};
pub use posture::{Posture, PostureItem, Protection, ProtectionState};
pub use snapshot::Snapshot;
pub use spec::{
    Access, DirectoryId, NetworkPolicy, RootFs, SandboxId, Spec, SpecBuilder, SpecParts, TenantId, WORKSPACE_PATH,
    Workspace,
};
pub use units::{ByteSize, Cpus, parse_duration, serde_duration, serde_optional_duration};
pub use warm::Warm;

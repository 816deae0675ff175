//! The contract between those who want code run and those who build walls around it.
//!
//! A face (command line, server, plugin host) makes a [`Spec`] and an [`ExecRequest`]; a [`Backend`] turns the spec
//! into a [`Sandbox`], the sandbox turns the request into an [`ExecHandle`]; what comes back is output, an [`Exit`]
//! and the [`Posture`] that says what was really enforced. The crate knows no backend, no tenant's quota and no face.
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

//! The API shared by frontends and backends.
//!
//! A frontend (CLI, MCP server, or a program that uses the library) builds a [`Spec`] and an [`ExecRequest`]. A
//! [`Backend`] creates a [`Sandbox`] from the spec. The sandbox starts the request and returns an [`ExecHandle`], which
//! delivers the output and an [`Exit`]. [`Sandbox::posture`] returns the protections that are enforced. This crate
//! depends on no backend and no frontend, and enforces no tenant quotas.
//!
//! # Where to look
//!
//! - Traits: `backend.rs` for [`Backend`] and [`Sandbox`], `prepared.rs` for prepared sandboxes, `handle.rs` for execs,
//!   `layer.rs` for layers around backends and sandboxes.
//! - Values: one file each, such as `spec.rs`, `exec.rs`, `limits.rs`, `posture.rs`, `exit.rs`, `error.rs`.
//! - Copies of files into and out of a workspace: `copy/`; the archives that carry them: `archive/`.
//! - Findings about a host: `doctor.rs`. Parts of a backend's settings: `configuration.rs`.
//! - Bounded ring buffers for output: `output.rs`. Events of watched directories: `watch/`, with pure coalescing.
//! - Termination of an exec and its exit, as pure functions: `supervise.rs`.
#![forbid(unsafe_code)]

pub mod archive;
mod backend;
pub mod configuration;
mod copy;
mod doctor;
mod error;
mod exec;
mod exit;
mod feed;
mod files;
mod handle;
mod layer;
mod limits;
mod mount;
mod network;
mod output;
mod posture;
mod prepared;
mod snapshot;
mod spec;
pub mod supervise;
mod units;
mod watch;

pub use backend::{
    Backend, Capabilities, Capability, Completed, Connection, Duplex, Level, MAX_SKIPPED, Sandbox, SandboxUsage,
    WorkspaceChanges, collect,
};
pub use copy::{
    CopyOut, CopyPattern, CopyReport, CopySkipped, MAX_COPIED_BYTES, MAX_COPIED_ENTRIES, MAX_SKIPPED_LISTED,
    SkippedFile,
};
pub use doctor::{Finding, FindingState};
pub use error::{Error, ErrorData, ErrorKind, Fault, Result, Retry, after_close};
pub use exec::{
    Command, DEFAULT_MAX_OUTPUT, EnvDelta, ExecRequest, ExecRequestBuilder, MAX_ARGUMENT_BYTES, Script, Stdin,
    TerminalSize,
};
pub use exit::{Exit, Usage};
pub use feed::{NetworkFeed, NetworkNews};
pub use files::{COPIED_MODE, DirEntry, EntryKind, FileReader, NewEntry, SandboxPath};
pub use handle::{DEFAULT_CANCEL_GRACE, ExecControl, ExecDriver, ExecHandle, ExecId, ExitWatch, StdinWriter};
pub use layer::{BackendLayer, LayeredSandbox, Permit, SandboxLayer, Sharing};
pub use limits::{LimitKind, Limits, MAX_PROCESSES};
pub use mount::{MAX_MOUNTS, Mount, MountAccess, MountSource, MountTarget, unsupported_mount};
pub use network::{
    NetworkDenial, NetworkEvent, NetworkPolicy, NetworkProtocol, NetworkRule, NetworkRules, NetworkSecret,
    NetworkUsage, SecretPlace,
};
pub use output::{Chunk, OutputEvent, OutputStream, OutputSubscription, Publisher};
pub use posture::{Posture, PostureItem, Protection, ProtectionState};
pub use prepared::PreparedSandbox;
pub use snapshot::Snapshot;
pub use spec::{
    Access, DirectoryId, RootFs, SandboxId, Spec, SpecBuilder, SpecParts, TenantId, WORKSPACE_PATH, Workspace,
};
pub use units::{ByteSize, Cpus, parse_duration, serde_duration, serde_optional_duration};
pub use watch::{
    DEFAULT_COALESCE, DEFAULT_MAX_PENDING, MAX_COALESCE, MAX_MAX_PENDING, MAX_WATCHED_DIRECTORIES, MAX_WATCHES,
    WatchChange, WatchEvent, WatchEvents, WatchOptions, WatchPublisher,
};

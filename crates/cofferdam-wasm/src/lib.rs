//! The WebAssembly backend: modules and components in this process, without access to the host.
//!
//! A guest is a command of WASI preview 1, or a component of WASI 0.2 that exports `wasi:cli/run`. It makes no system
//! calls. It can call only WASI functions, implemented in `wasi/` for modules and in `component/` for components. Both
//! share one host state with files in memory. A guest gets no process or thread, and no host directory except a
//! read-only workspace that is copied into that memory. Its only network is a component's connections to hosts that a
//! policy names. The host's cost is bounded: wall time and CPU time, memory, files, output, stack, and compilation.
//!
//! The compiler provides the isolation. A bug there is a way into this process. Use a higher isolation level for code
//! that may attack it.
//!
//! # Where to look
//!
//! - Settings from a file, the environment or options: `settings.rs`.
//! - The ways to run a program: `run/mod.rs`. Compilation and its cache: `loader.rs`, above `engine.rs`. One instance
//!   in its store: `guest.rs`. Files and directories of a sandbox: `files.rs`.
//! - Functions for modules: `wasi/link.rs` first. Functions for components: `component/resources.rs` first.
//! - Checks before compilation: `analysis.rs`, `component/analysis.rs` and `component/types.rs`.
//! - Files in memory: `fs/mod.rs`, which knows nothing of WASI. A host directory as a copy: `import.rs`.
//! - Termination: `guest_control.rs` and `Host::check` in `wasi/host.rs`.
//! - Memory images and their reset: `sys/slot.rs`, `instrument.rs`, `program.rs`; reasons:
//!   `docs/adr/0012-wasm-memories.md`.
//! - Prepared interpreters: `languages.rs`. Sessions: `run/session.rs`; their files: `run/snapshot.rs`.
//!
//! The graph of modules has no cycle. A folder counts as one module.
#![deny(unsafe_code)]

mod account;
mod analysis;
mod backend;
mod budget;
mod component;
mod config;
mod directories;
mod doctor;
mod engine;
mod environment;
mod error;
mod files;
mod fs;
mod guest;
mod guest_control;
mod import;
mod instrument;
mod languages;
mod limiter;
mod loader;
mod network;
mod output;
mod policy;
mod posture;
mod program;
#[cfg(feature = "programs")]
mod programs;
mod run;
mod sandbox;
mod settings;
mod state;
mod sys;
mod termination;
mod time;
mod wasi;

pub use backend::WasmBackend;
pub use cofferdam_wasm_runtimes::{Interpreter, Language, Step};
pub use config::WasmConfig;
pub use doctor::doctor;
pub use languages::{Preparing, obtain};
#[cfg(feature = "programs")]
pub use programs::WasmPrograms;
pub use run::{Call, Loaded, Runner, Session, SessionKind, SessionSnapshot};
pub use settings::{Seed, WasmSettings};

/// The backend's name in options and configuration.
pub const NAME: &str = "wasm";

/// The interpreter name of a [`Script`](cofferdam_contract::Script) whose content is a module.
pub const INTERPRETER: &str = run::INTERPRETER;

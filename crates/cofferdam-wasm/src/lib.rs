//! Level 1: WebAssembly modules and components run in this process, with nothing of the host but what is given to them.
//!
//! A guest is a command of WASI preview 1, or a component of WASI 0.2 that exports `wasi:cli/run`. It can make no system
//! call: it has the calls of [`wasi`](self) or, over the same host, of [`component`](self), this crate's own, over files
//! that lie in memory. There is no host directory, no process and no thread to be had, and no network but connections of
//! components to the hosts that a policy names. What a guest makes the host spend is bounded: time on the clock and on the processor, memory, files, output, stack, and
//! the work of compiling it.
//!
//! The wall is the compiler's: a hole in it is a hole into this process. For code that may try that, use a thicker wall.
#![deny(unsafe_code)]

mod account;
mod backend;
mod budget;
mod command;
mod component;
mod config;
mod direct;
mod doctor;
mod ending;
mod engine;
mod error;
mod exec;
mod fs;
mod guest;
mod import;
mod instrument;
mod languages;
mod leash;
mod limiter;
mod network;
mod output;
mod policy;
mod posture;
mod preopens;
mod program;
#[cfg(feature = "programs")]
mod programs;
mod sandbox;
mod screen;
mod session;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod state;
mod sys;
mod time;
mod wasi;

pub use backend::WasmBackend;
pub use cofferdam_wasm_supply::{Interpreter, Language, Step};
pub use config::WasmConfig;
pub use direct::{Call, Loaded, Runner};
pub use doctor::{Finding, doctor};
pub use languages::{Preparing, obtain};
#[cfg(feature = "programs")]
pub use programs::WasmPrograms;
pub use session::{Session, SessionKind};
pub use snapshot::SessionSnapshot;

/// The interpreter that a [`Script`](cofferdam_contract::Script) names whose contents are a module.
pub const INTERPRETER: &str = command::INTERPRETER;

//! Interpreters that are started before anybody needs them, and wait warm inside a sandbox for the code they will run.
//!
//! ```text
//! sandbox --warm--> waiting interpreter --start(request)--> exec handle --> exit, sandbox given up
//! ```
//!
//! The caller makes a sandbox; [`WaitingInterpreter::warm`] starts an interpreter in it that imports modules, runs
//! through everything once, and then reads one request from its standard input. [`WaitingInterpreter::start`] gives it
//! that request and takes it away for good: no interpreter ever runs the code of two requests, and each was started by
//! its own `execve`, with its own address space, hash seed and random state. `docs/interpreters.md` says what is the
//! same as in a run from cold, and what is not.
//!
//! The crate knows the contract only; it keeps no pool and makes no sandbox.
#![forbid(unsafe_code)]

mod config;
mod error;
mod frame;
mod line;
mod marker;
mod plan;
mod ready;
mod run;
mod waiting;

pub use config::{InterpreterConfig, Runtime};
pub use waiting::{EXTRA_PROCESSES, WaitingInterpreter};

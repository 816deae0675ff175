//! Prepared interpreters: started in a sandbox before a request, each for one request.
//!
//! ```text
//! sandbox --warm--> prepared interpreter --start(request)--> exec handle --> exit, sandbox released
//! ```
//!
//! The caller creates a sandbox. [`WarmInterpreter::prepare`] starts an interpreter in it, which imports modules, runs
//! every code path once, and reads one request from its standard input. [`WarmInterpreter::start`] sends that
//! request and consumes the interpreter. No interpreter runs the code of two requests. Each was started by its own
//! `execve`, with its own address space, hash seed and random state. `docs/interpreters.md` lists the differences from
//! a cold start.
//!
//! The crate depends on the contract only. It manages no pool and creates no sandbox.
//!
//! # Where to look
//!
//! - Code inside the sandbox: `bootstrap/`, one file for each language.
//! - The encoding of a request: `frame.rs`. Requests that a started interpreter can take: `plan.rs`, which is pure.
#![forbid(unsafe_code)]

mod config;
mod error;
mod frame;
mod interpreter;
mod line;
mod marker;
mod plan;
mod ready;
mod run;

pub use config::{InterpreterConfig, Runtime};
pub use interpreter::{EXTRA_PROCESSES, WarmInterpreter};

//! A deterministic backend without isolation, for tests of code that uses the contract.
//!
//! Its guests are [`Program`]s, lists of [`Step`]s that an interpreter in this process executes. It runs, reads and writes
//! nothing of the host. Limits, time-outs, signals and the workspace are simulated on tokio's clock, which a test can pause.
//! A [`FaultPlan`] selects the calls that fail and the execs that misbehave, the same in every run.
//!
//! Its level is [`Level::Simulated`](cofferdam_contract::Level::Simulated), and its posture claims the simulated limits only.
//!
//! # Where to look
//!
//! - From a spec to a sandbox: `plan.rs`, which is pure.
//! - Guest programs: `program.rs`; their interpreter: `interpreter.rs`. Faults: `fault.rs`.
//! - Programs for the conformance suite: `programs.rs`.
#![forbid(unsafe_code)]

mod backend;
mod config;
mod error;
mod exec;
mod fault;
mod host;
mod interpreter;
mod plan;
mod posture;
mod prepared;
mod program;
#[cfg(feature = "programs")]
mod programs;
mod sandbox;
mod state;
mod tree;

pub use backend::SimulatedBackend;
pub use config::SimulatedConfig;
pub use fault::{ExecFault, FaultPlan, FaultPoint};
pub use program::{OnTerm, PROGRAM, Program, Step};
#[cfg(feature = "programs")]
pub use programs::SimulatedPrograms;

/// The backend's name in options and configuration.
pub const NAME: &str = "simulated";

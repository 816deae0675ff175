//! A deterministic backend without a wall, for tests of what uses the contract.
//!
//! Its guests are [`Program`]s, lists of [`Step`]s that an interpreter in this process carries out: nothing of the host
//! is run, read or written. Limits, time-outs, signals and the workspace are simulated, on tokio's clock, so that a
//! test may pause it. A [`FaultPlan`] says which calls fail and which execs misbehave, the same in every run.
//!
//! It is no wall, and says so: its level is [`Level::Simulated`](cofferdam_contract::Level::Simulated), and its posture
//! claims no more than the simulated limits.
#![forbid(unsafe_code)]

mod backend;
mod config;
mod error;
mod exec;
mod fault;
mod host;
mod interpreter;
mod posture;
mod program;
#[cfg(feature = "programs")]
mod programs;
mod sandbox;
mod state;
mod tree;
mod warm;

pub use backend::SimulatedBackend;
pub use config::Config;
pub use fault::{ExecFault, FaultPlan, FaultPoint};
pub use program::{OnTerm, PROGRAM, Program, Step};
#[cfg(feature = "programs")]
pub use programs::SimulatedPrograms;

//! The conformance suite that every sandbox backend must pass.
//!
//! It has a table of cases, each a small guest program with the expected outcome, and runs them against any
//! [`Backend`](cofferdam_contract::Backend), in this repository or elsewhere:
//!
//! ```no_run
//! # async fn example(backend: std::sync::Arc<dyn cofferdam_contract::Backend>) {
//! use cofferdam_conformance::{Options, Target, UnixPrograms, run};
//!
//! let report = run(&Target::new(backend, UnixPrograms::default()), &Options::default()).await;
//! println!("{report}");
//! assert!(report.is_success());
//! # }
//! ```
//!
//! The suite needs no test framework and knows no backend. It does not measure speed: its deadlines only turn a hang
//! into a failure. Operations of a capability that the backend does not declare must return `Unsupported`. The suite
//! tests that instead, and the case counts as skipped, never as passed.
//!
//! # Where to look
//!
//! - Cases: `cases/mod.rs`, with one file for each subject.
//! - Comparison of a claimed sandbox with a created one: `equivalence.rs`.
//! - Guest programs: `programs.rs`, and `unix.rs` for guests with a shell.
#![forbid(unsafe_code)]

mod case;
mod cases;
pub mod equivalence;
mod pattern;
mod programs;
mod report;
mod run;
mod target;
mod unix;

pub use case::CaseInfo;
pub use programs::{GuestProgram, Programs, READY};
pub use report::{CaseResult, Outcome, Report};
pub use run::{cases, run};
pub use target::{Census, Options, Progress, Target, TestImage};
pub use unix::UnixPrograms;

//! The kit that every sandbox backend must pass.
//!
//! It holds a table of cases, each a small program for the guest and what must be seen from outside, and runs them
//! against any [`Backend`](cofferdam_contract::Backend), its own or an outsider's:
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
//! The kit needs no test framework, and knows no backend. It does not measure speed: its deadlines only turn a hang
//! into a failure. What a backend does not declare must answer `Unsupported`, which is tested in place of the case; the
//! case itself then counts as skipped, never as passed.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod pattern;
mod programs;
mod report;
mod run;
mod target;
pub mod twins;
mod unix;

pub use case::CaseInfo;
pub use programs::{GuestProgram, Programs, READY};
pub use report::{CaseResult, Outcome, Report};
pub use run::{cases, run};
pub use target::{Census, Options, Progress, Target};
pub use unix::UnixPrograms;

//! Level 2: processes behind namespaces, mounts, filters and control groups.
//!
//! ```text
//! ProcessBackend --socket--> launcher (this program, executed once more) --forks--> init of each sandbox --> guests
//! ```
//!
//! The launcher is started with the first sandbox and holds a template of the root file system; a sandbox is a fork of
//! it that adds what is its own and then gives up every privilege, for good. [`ProcessBackend`] talks to each init over
//! a socket of its own. `ARCHITECTURE.md` has the whole picture.
//!
//! A program that uses this crate becomes its own launcher: see [`ProcessConfig::launcher`].
#![deny(unsafe_code)]

mod backend;
mod client;
mod config;
mod core;
mod doctor;
mod error;
mod exec;
mod files;
mod forked;
mod interpreters;
mod launcher;
mod posture;
mod protocol;
mod raw;
mod sandbox;
#[cfg(test)]
mod shares_tests;
mod stdio;
mod stored;
#[expect(unsafe_code, reason = "the entry before main, and descriptors given to the runtime")]
mod sys;
mod warm;

pub use backend::ProcessBackend;
pub use config::{ControlGroups, ForkedLauncher, LauncherStart, ProcessConfig};
pub use doctor::{Finding, FindingState, doctor};

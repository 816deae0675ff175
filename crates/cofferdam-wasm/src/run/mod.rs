//! The ways to run a program.
//!
//! ```text
//! start              exec: a new guest on its own thread, for a command module, a component or a script
//! open_session       session: one guest on its own threads that is called repeatedly
//! restore_session    the same, resumed from a snapshot
//! Loaded             direct run: a program that runs many times on the caller's thread
//! ```
//!
//! All of them run a [`Guest`](crate::guest::Guest), which calls a component or a module's function. This module knows
//! neither the sandbox nor the backend: both call it, and pass a function that creates the sandbox of a session.

mod command;
mod direct;
mod exec;
mod session;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod thread;

pub(crate) use command::INTERPRETER;
pub use direct::{Call, Loaded, Runner};
pub(crate) use exec::start;
pub use session::{Session, SessionKind};
pub(crate) use session::{open_session, restore_session};
pub use snapshot::SessionSnapshot;

//! Tests that run the built binary or complete sandboxes, in one program.
#![forbid(unsafe_code)]

mod census;
mod cli;
mod conformance;
mod connect;
mod daemon;
mod forked;
mod groups;
mod hostile;
mod interpreters;
#[cfg(feature = "net")]
mod net;
#[cfg(feature = "plugins")]
mod plugins;
mod pool;
mod supervisor;
#[cfg(feature = "vm")]
mod v2;

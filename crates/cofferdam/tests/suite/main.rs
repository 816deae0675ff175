//! Tests that run the built binary or complete sandboxes, in one program.
#![forbid(unsafe_code)]

mod census;
#[cfg(feature = "vm")]
mod cgroup_v2;
mod cli;
mod conformance;
mod connect;
mod copies;
mod forked;
mod groups;
mod hostile;
mod images;
mod interpreters;
#[cfg(feature = "net")]
mod net;
#[cfg(feature = "plugins")]
mod plugins;
mod pool;
mod resident;
mod supervisor;
mod terminal;
mod watch;

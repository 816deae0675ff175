//! Everything that is tested by running the built binary or a whole sandbox, in one program.
#![forbid(unsafe_code)]

mod census;
mod cli;
mod conformance;
mod daemon;
mod forked;
mod hostile;
mod interpreters;
mod pool;
mod supervisor;
#[cfg(feature = "vm")]
mod v2;

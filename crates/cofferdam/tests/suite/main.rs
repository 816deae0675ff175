//! Everything that is tested by running the built binary or a whole sandbox, in one program.
#![forbid(unsafe_code)]

mod census;
mod cli;
mod conformance;
mod forked;
mod daemon;
mod hostile;
mod pool;
mod supervisor;

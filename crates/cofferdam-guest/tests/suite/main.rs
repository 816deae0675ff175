//! Tests of the agent as a real process 1, in separate namespaces, connected by pipes.
#![forbid(unsafe_code)]

mod backend;
mod conformance;
mod connections;
mod enclosure;
mod execs;
mod files;
mod isolation;
mod peer;
mod quiesce;
mod termination;

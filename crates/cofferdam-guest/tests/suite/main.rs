//! Tests of the agent as a real process 1, in separate namespaces, connected by pipes.
#![forbid(unsafe_code)]

mod backend;
mod enclosure;
mod ends;
mod execs;
mod files;
mod hold;
mod kit;
mod peer;
mod walls;

//! Components of WASI 0.2 ("preview 2"): commands that export `wasi:cli/run`.
//!
//! Components use the same host and files as modules of preview 1. This module translates the calls of the component
//! interfaces into the host's operations. All calls are synchronous, on the guest's own thread. A call that blocks
//! waits at the guest control, so a cancel or the deadline ends it. A component's host resources are in one table of a
//! fixed size, and the data passed in one call is bounded too.

mod analysis;
mod bindings;
mod cli;
mod clocks;
mod error;
mod filesystem;
mod lookup;
mod paths;
mod poll;
mod program;
mod random;
mod resources;
mod sockets;
mod streams;
mod tcp;
mod types;
mod udp;

pub(crate) use analysis::is_component;
pub(crate) use program::{Component, compile, run};

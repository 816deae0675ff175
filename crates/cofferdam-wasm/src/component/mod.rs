//! Components of WASI 0.2 ("preview 2"): commands that export `wasi:cli/run`.
//!
//! They get the same as modules of preview 1, from the same host, over the same files: what is here turns the calls of the
//! component interfaces into its operations. All calls are synchronous, on the guest's own thread; one that waits does so
//! at the guest's leash, so that a cancel and the deadline end it. What a component holds of the host lies in one table of
//! a fixed size, and what it passes in one call is bounded too.

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
mod screen;
mod sockets;
mod streams;
mod tcp;
mod types;
mod udp;

pub(crate) use program::{Component, compile, run};
pub(crate) use resources::Resources;
pub(crate) use screen::is_component;

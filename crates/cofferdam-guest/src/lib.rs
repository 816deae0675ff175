//! The guest agent (process 1 in a container, server of execs in a VM), its wire protocol, and the host's side.
//!
//! ```text
//! host: Guest --requests--> | any pair of byte streams | --> agent --vfork, exec--> guests
//!             <--answers--- |                          | <--   '-- pipes, terminals --------'
//! ```
//!
//! [`AGENT`] is the program. A backend puts it into the sandbox and connects its standard input and output.
//! [`Guest::connect`] greets it, has it install its part of the isolation, and measures from inside. A backend
//! implements a sandbox with the [`Guest`] that it returns. The crate creates no container or VM and evaluates no
//! measurement.
//!
//! Messages from the agent are treated as hostile, because a guest may have taken over the agent. It can answer a
//! request once. Anything else ends the connection. `docs/adr/0014-guest-agent.md` has the design reasons.
//!
//! # Where to look
//!
//! - The agent: `agent/`, `agent/serve.rs` first. The protocol: `agent/wire/mod.rs`.
//! - What the host accepts from the agent: `slots.rs`.
//! - Quiescing a guest and reattaching to a copy: `quiesce.rs` and `link/quiesce.rs` on the host,
//!   `agent/serve/quiesce.rs` inside.
//! - Watches of the workspace: `watch.rs`; the agent only passes on the events of its kernel.
//! - A stream over a VM's vsock: `agent/line.rs`.
//! - Connections of guests and to guests: `agent/connections.rs` and `streams.rs`; network policies: `network.rs`.
#![forbid(unsafe_code)]

mod archive;
mod error;
mod evidence;
mod exec;
mod files;
mod flow;
mod guest;
mod inner;
mod link;
pub mod network;
mod probes;
mod quiesce;
mod record;
mod reseed;
mod running;
mod settings;
mod slots;
mod streams;
mod watch;
mod window;
#[expect(dead_code, reason = "each side uses its half")]
#[path = "../agent/wire/mod.rs"]
mod wire;
#[cfg(test)]
mod wire_tests;

pub use archive::ArchiveSummary;
pub use evidence::{Bounds, Evidence, ForbiddenCall, Identity, Mount, Space, Trial};
pub use guest::Guest;
pub use quiesce::Quiesced;
pub use record::Record;
pub use reseed::Reseed;
pub use settings::{Groups, Meter, ReadCpu, Reason, Rule, Settings, Termination, usual_rules};
pub use slots::ResolverQuery;
pub use streams::{Queries, Stream};
pub use wire::TAKEN;

/// The version of the protocol that the agent in [`AGENT`] speaks. Hosts support no other version.
pub const PROTOCOL: u32 = wire::VERSION;

/// The agent: a static program for this target, which needs nothing from the image that it runs in.
pub static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-agent"));

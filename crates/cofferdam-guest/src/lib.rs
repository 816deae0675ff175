//! The agent that is process 1 inside of a container or a virtual machine, what it and its host say to each other, and
//! the host's side of that.
//!
//! ```text
//! host: Guest --orders--> | any pair of byte streams | --> agent (process 1) --vfork, exec--> guests
//!             <--answers- |                          | <--       '-- pipes, terminals --------'
//! ```
//!
//! [`AGENT`] is the program; whoever makes the enclosure puts it there and connects its standard input and output.
//! [`Guest::connect`] greets it, measures the enclosure from inside and has it build the walls that are its own to build;
//! [`Guest`] is then what a backend needs to be a sandbox. The crate makes no enclosure and judges none.
//!
//! What the agent says is treated as hostile: it shares the fate of its guests. It can answer what it was asked, once,
//! and nothing else; anything else ends the connection.
#![forbid(unsafe_code)]

mod archive;
mod error;
mod evidence;
mod exec;
mod files;
mod flow;
mod guest;
mod hold;
mod ledger;
mod link;
mod probes;
mod record;
mod renewal;
mod running;
mod settings;
mod slots;
#[expect(dead_code, reason = "each side uses its half")]
#[path = "../agent/wire/mod.rs"]
mod wire;
#[cfg(test)]
mod wire_tests;

pub use archive::Archive;
pub use evidence::{Bounds, Evidence, ForbiddenCall, Mount, Space, Trial};
pub use guest::Guest;
pub use hold::Held;
pub use record::Record;
pub use renewal::Renewal;
pub use settings::{Ending, Groups, Meter, ReadCpu, Reason, Rule, Settings, usual_rules};
pub use wire::TAKEN;

/// The version of the protocol that the agent in [`AGENT`] speaks. Hosts talk to no other one.
pub const PROTOCOL: u32 = wire::VERSION;

/// The agent: a static program for this target, which needs nothing of the image that it runs in.
pub static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-agent"));

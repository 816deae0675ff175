//! The protocol between host and plugin: JSON-RPC 2.0 in frames with `Content-Length`. `docs/plugin-protocol.md`
//! describes it.

#[cfg(feature = "host")]
mod backlog;
mod error;
#[cfg(feature = "host")]
mod frame;
#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "host")]
mod message;
#[cfg(feature = "host")]
mod peer;
#[cfg(feature = "host")]
mod violation;

pub use error::{CallError, ErrorKind};
#[cfg(feature = "host")]
pub(crate) use frame::Decoder;
#[cfg(feature = "host")]
pub use peer::{Incoming, MAX_MESSAGE, Peer, Request, Served, Step, StreamItem};
#[cfg(feature = "host")]
pub use violation::Violation;

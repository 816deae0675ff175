//! The resident half of a server: the private socket of a user, runs over it, and their client.
//!
//! ```text
//! client: Spec + ExecRequest --Unix socket--> server: prepared interpreter, else pool --> sandbox
//!         chunks, exit       <---------------
//! HTTP client --------------> same socket --> HTTP server, if the process has one
//! ```
//!
//! [`ResidentServer`] listens. [`Connection`] carries one run in one sandbox; closing it ends both. [`ResidentBackend`]
//! wraps it as a contract `Backend`. The kernel authenticates both sides: the socket is in a directory that only its
//! user can enter, and each side asks the kernel for the peer's identity. The crate names no backend and reads no
//! environment. `docs/server-runs.md` has the threat model, `docs/adr/0021-one-resident-server.md` the design reasons.
//!
//! # Where to look
//!
//! - Settings from a file or options: `settings.rs`.
//! - Messages: `message.rs` and `frame.rs`. Access: `socket_directory.rs` and `peer.rs`.
//! - Connections of the server: `server/mod.rs` distinguishes runs from HTTP; then `server/handshake.rs` and
//!   `server/conversation.rs`.
#![forbid(unsafe_code)]

mod client;
mod config;
mod directories;
mod error;
mod frame;
mod message;
mod peer;
mod server;
mod settings;
mod socket_directory;

pub use client::{Connection, Refusal, Requirements, ResidentBackend};
pub use config::{ResidentConfig, Surroundings};
pub use message::Status;
pub use server::{Http, ResidentServer};
pub use settings::ServeSettings;
pub use socket_directory::{Candidates, Claimed, SocketDirectory};

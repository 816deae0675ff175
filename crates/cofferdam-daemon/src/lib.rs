//! The daemon: one user's resident process with prepared sandboxes and interpreters, and its client.
//!
//! ```text
//! client: Spec + ExecRequest --Unix socket--> server: prepared interpreter, else pool --> sandbox
//!         chunks, exit       <---------------
//! ```
//!
//! [`Server`] listens. [`Connection`] carries one run in one sandbox; closing it ends both. [`DaemonBackend`] wraps it
//! as a contract `Backend`. The kernel authenticates both sides: the socket is in a directory that only its user can
//! enter, and each side asks the kernel for the peer's identity. The crate names no backend and reads no environment.
//! `docs/daemon.md` has the threat model.
//!
//! # Where to look
//!
//! - Settings from a file or options: `settings.rs`.
//! - Messages: `message.rs` and `frame.rs`. Access: `place.rs` and `peer.rs`.
//! - Connections of the server: `server/conversation.rs` and `server/visit.rs`.
#![forbid(unsafe_code)]

mod client;
mod config;
mod directories;
mod error;
mod frame;
mod message;
mod peer;
mod place;
mod server;
mod settings;

pub use client::{Asked, Connection, DaemonBackend, Refusal};
pub use config::{DaemonConfig, Surroundings};
pub use message::Status;
pub use place::{Candidates, Place};
pub use server::Server;
pub use settings::DaemonSettings;

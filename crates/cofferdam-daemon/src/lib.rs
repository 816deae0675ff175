//! A resident process of one user that keeps sandboxes and interpreters warm, and how others of that user run things
//! through it.
//!
//! ```text
//! client: Spec + ExecRequest --Unix socket--> server: waiting interpreter, else pool --> sandbox
//!         chunks, exit       <---------------
//! ```
//!
//! [`Server`] listens; [`Connection`] is one run through it, and behind the contract a [`DaemonBackend`]. One connection
//! is one sandbox with one run, and its end is the end of both. Who may talk is settled by the kernel: the socket lies in a
//! directory that only its user can enter, and both sides ask the kernel who is at the other end. The crate names no
//! backend and reads no environment; `docs/daemon.md` has the threat model.
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

pub use client::{Asked, Connection, DaemonBackend, Refusal};
pub use config::{DaemonConfig, Surroundings};
pub use message::Status;
pub use place::{Candidates, Place};
pub use server::Server;

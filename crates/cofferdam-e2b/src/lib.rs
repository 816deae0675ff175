//! The backend `e2b`: sandboxes that are VMs of the E2B cloud, over its public API.
//!
//! ```text
//! E2bBackend --POST /v2/sandboxes--> E2bSandbox --process.Process/Start--> events of an exec
//!     |  control plane, API key          |  agent of the VM (envd), token     | cut: process.Process/Connect
//!     |                                  |                                    '-- output meanwhile is lost
//!     '-- timeout, extended while the    '-- GET and POST /files: contents
//!         sandbox is in use                  commands in the VM: links, permissions, renames
//! ```
//!
//! A command starts under a small shell script that sets its environment exactly, checks that it exists, and tags its
//! processes with two resource limits without effect, by which another script finds all of them to end them. E2B's own
//! file operations follow links and hide their targets, so that paths are resolved by a script as well.
//!
//! E2B decides the size of a VM. The backend measures it inside, reports it as the posture, and refuses specs that E2B
//! cannot satisfy.
//! Nothing here has been run against the real cloud: tests use a local server of the same protocol, which E2B's own
//! SDKs accept.
//!
//! # Where to look
//!
//! - Requests: `client.rs`, with the messages in `wire.rs` and the framing of streams in `frames.rs`.
//! - Scripts that run in the VM: `guest/`, and `guest.rs`.
//! - Execs: `exec.rs` starts them, `drive.rs` follows them, `input.rs` sends input. Files: `files.rs`, with
//!   their contents in `upload.rs`.
#![forbid(unsafe_code)]

mod backend;
mod client;
mod config;
mod core;
mod doctor;
mod drive;
mod error;
mod exec;
mod files;
mod frames;
mod guest;
mod input;
mod posture;
mod sandbox;
mod settings;
mod upload;
mod wire;

pub use backend::E2bBackend;
pub use config::{DEFAULT_DOMAIN, DEFAULT_LIFETIME, DEFAULT_TEMPLATE, E2bConfig, Key};
pub use doctor::doctor;
pub use settings::E2bSettings;

/// The backend's name.
pub const NAME: &str = "e2b";

//! SDK for Cofferdam plugins in Rust.
//!
//! ```text
//! standard input --wire--> Session --a thread for each call--> methods and handlers of the Plugin
//! standard output <--wire-- answers, notifications, requests of services <-- Context
//! ```
//!
//! The SDK is synchronous. On WASI it has one thread: it handles requests one after the other, and reads messages while
//! a method waits for a service. It does not check inputs against the manifest's schemas, nor permissions. The host does
//! both.
#![doc = include_str!("../README.md")]

mod content;
mod context;
mod error;
mod plugin;
pub mod services;
mod session;
mod stdio;
pub mod testing;
mod wire;

pub use context::{Context, Log};
pub use error::{Error, ErrorKind, Result};
pub use plugin::{Event, Plugin, Timer};

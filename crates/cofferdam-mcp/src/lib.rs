//! The MCP server: agents run code and commands, and use files, in sandboxes of any backend.
//!
//! [`Server`] holds the sandboxes. [`stdio::serve`] serves one client over pipes, [`http::Listening`] many clients over
//! streamable HTTP. Both support the current revision of the protocol, which has no sessions, and earlier ones. The
//! official SDK implements the protocol. This crate controls the access of clients to sandboxes, the permitted
//! arguments of calls, and all bounds. It is independent of backends, and reads no environment and no configuration.
//! `docs/mcp.md` is the user's page.
//!
//! # Where to look
//!
//! - Ownership of sandboxes: `store.rs`. Names of interpreters: `interpreters.rs`.
//! - Permitted arguments of calls: `policy.rs`, which is pure.
//! - Access over HTTP: `http/guard.rs`, and `HttpConfig` in `http/mod.rs`.
//! - Tools: `catalog.rs` and `calls/mod.rs`.
#![forbid(unsafe_code)]

mod arguments;
mod calls;
mod catalog;
mod config;
mod failure;
mod handler;
pub mod http;
mod interpreters;
mod live;
mod media;
mod policy;
mod resources;
mod results;
mod schema;
mod server;
mod snapshot_gate;
pub mod stdio;
mod store;
mod uri;

pub use config::{Bounds, McpConfig};
pub use handler::Handler;
pub use server::Server;
pub use tokio_util::sync::CancellationToken;

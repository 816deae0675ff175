//! A server of the Model Context Protocol: agents run code and commands, and work on files, in sandboxes of any backend.
//!
//! [`Server`] holds the sandboxes; [`stdio::serve`] talks with one client over pipes, [`http::Listening`] with many over
//! streamable HTTP. Both speak the current revision of the protocol, which has no sessions, and those before it. The
//! official SDK does the protocol; this crate decides who may use which sandbox, what a call may ask for, and how much
//! of everything there is. It knows no backend, and reads neither environment nor configuration. `docs/mcp.md` says what
//! clients see.
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
pub mod stdio;
mod steady;
mod store;
mod uri;

pub use config::{Bounds, McpConfig};
pub use handler::Handler;
pub use server::Server;
pub use tokio_util::sync::CancellationToken;

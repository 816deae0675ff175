//! The backend `remote`: sandboxes of a server behind the contract.
//!
//! ```text
//! RemoteBackend --POST /v1/sandboxes--> RemoteSandbox --POST …/execs--> RemoteExec <--WebSocket--> server
//!                                            |                              | cut: attach again at the offset
//!                                            '-- DELETE when it is closed or dropped
//! ```
//!
//! The server derives the tenant from the client's key. It can offer less than its backends do, so that the
//! capabilities are those that it lists.

mod backend;
mod config;
mod doctor;
mod exec;
mod files;
mod sandbox;
mod settings;
mod watch;

pub use backend::RemoteBackend;
pub use config::{RemoteConfig, variables};
pub use doctor::doctor;
pub use settings::RemoteSettings;

/// The backend's name.
pub const NAME: &str = "remote";

//! The protocol between host and plugin: JSON-RPC 2.0 in frames with `Content-Length`. `docs/plugin-protocol.md`
//! describes it.

mod error;

pub use error::{CallError, ErrorKind};

//! Plugins: their manifests, and the rules that they must keep.
//!
//! ```text
//! plugin.toml or plugin.json --document--> value, with the position of each part
//!     --schema, rules--> every problem at once, or a Manifest
//! ```
//!
//! # Where to look
//!
//! - Manifests: `manifest.rs` has the types, from which the published JSON Schema is generated. `rules.rs` has the rules
//!   that a schema cannot express. `document.rs` reads both formats, and `check.rs` checks them.
//! - The protocol, from hostile bytes: `wire.rs`, with frames in `wire/frame.rs` and messages in `wire/message.rs`.
//!
//! With the feature `host`:
//!
//! - The host: `host.rs`; one plugin: `host/plugin.rs`; one process: `host/instance.rs`; its sandbox: `host/launch.rs`.
//! - Decisions about starts, stops and restarts: `supervision.rs`, without I/O.
//! - Requests of plugins: `host/requests.rs`, with permissions in `host/permission.rs` and answers in `services.rs`.
//! - Packages and installed plugins: `package.rs`; new plugins: `scaffold.rs`.
#![forbid(unsafe_code)]

mod check;
mod document;
#[cfg(feature = "host")]
pub mod host;
mod manifest;
#[cfg(feature = "host")]
pub mod package;
mod pattern;
mod problem;
mod rules;
#[cfg(feature = "host")]
pub mod scaffold;
#[cfg(feature = "host")]
pub mod services;
#[cfg(feature = "host")]
mod supervision;
mod wire;

pub use check::{MAX_MANIFEST, check, schema};
pub use document::Format;
pub use manifest::{
    Entry, Events, FsAccess, Limits, MANIFEST_VERSION, Manifest, Method, Permission, Restart, Runtime, Sandbox,
    Strategy, Timeouts,
};
pub use pattern::{is_event_name, is_event_pattern, matches_event};
pub use problem::{Problem, Severity};
pub use wire::{CallError, ErrorKind};

/// Entry points of the parsers of hostile bytes, for fuzz targets.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    pub use crate::package::fuzz::{member, open, sealed};
    pub use crate::wire::fuzz::Wire;
}

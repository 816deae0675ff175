//! Plugins: their manifests, and the rules that they must keep.
//!
//! ```text
//! plugin.toml or plugin.json --document--> value, with the place of each part
//!     --schema, rules--> every problem at once, or a Manifest
//! ```
//!
//! Where to look: `manifest.rs` has the types, from which the published JSON Schema is generated. `rules.rs` has the
//! rules that a schema cannot express. `document.rs` reads both formats. `package.rs` packs, verifies and
//! installs plugins, and `scaffold.rs` creates new ones: both need the feature `host`.
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

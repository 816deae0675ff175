//! Properties for hostile bytes: no panic, no hang, no memory beyond the limit, no unexpected error, nothing left behind.
//!
//! Each target is a module with a type that checks one case. [`module::Modules`] takes a WebAssembly module,
//! [`snapshot::Snapshots`] the content of a session's snapshot, [`archive::Archives`] an archive of a VM, and
//! [`screen::Screens`] code for static analysis, [`network::Networks`] what a guest sends to its gateway,
//! [`plugin::Plugins`] what a plugin sends to its host, [`package::Packages`] a package of a plugin,
//! [`changes::Changes`] a change set of a workspace, and [`layer::Layers`] a layer of an image.
//! [`drive`](drive::drive) makes cases from a seed and works with any toolchain.
//! The directory `fuzz/` of the repository runs the same targets with libFuzzer, as a workspace of its own.
//!
//! # Where to look
//!
//! - Generated cases: `cases.rs`. What a case left in the process: `watch.rs`.
#![forbid(unsafe_code)]

pub mod archive;
pub mod cases;
pub mod changes;
pub mod drive;
mod host;
pub mod layer;
pub mod module;
pub mod network;
pub mod package;
pub mod plugin;
pub mod screen;
pub mod snapshot;
mod watch;

//! What must hold whatever bytes come from the other side of a wall: no panic, no hang, no more memory than is allowed,
//! no error of a kind that is nobody's to expect, nothing left behind.
//!
//! Each target is a module with a type that checks one case: [`module::Modules`] takes the bytes of a WebAssembly module,
//! [`snapshot::Snapshots`] those that are packed in a snapshot of a session, [`archive::Archives`] the archive of a machine,
//! [`screen::Screens`] code to be screened.
//! A target is driven by [`drive`](drive::drive), which makes its own cases from a seed and runs on any toolchain, and by
//! libFuzzer through the folder `fuzz/` of the repository, which is a workspace of its own.
#![forbid(unsafe_code)]

pub mod archive;
pub mod cases;
pub mod drive;
mod host;
pub mod module;
pub mod screen;
pub mod snapshot;
mod watch;

//! Sandboxes that are virtual machines: each has a kernel of its own.
//!
//! ```text
//! VmBackend --Machine--> dyn Vmm (qemu, firecracker) --process--> VM: kernel, initramfs, agent
//!     '------- cofferdam_guest::Guest ---- byte streams (virtio-serial, vsock) ----'
//! ```
//!
//! `vmm` is what every monitor offers, `qemu` the one that works everywhere. `image` makes what machines start from. The
//! program in `init/` makes of a bare kernel the place where the agent runs; from there on a machine is served as a
//! container is. `snapshot` is a machine at rest, from which any number go on; `ready` keeps some for machines that are made
//! ahead.
#![forbid(unsafe_code)]

mod archive;
mod backend;
mod bounds;
mod budget;
mod choice;
mod config;
mod doctor;
mod error;
pub mod firecracker;
pub mod image;
pub mod kvm;
mod make;
#[path = "../init/options.rs"]
mod options;
#[cfg(test)]
mod options_tests;
mod plan;
mod posture;
pub mod qemu;
mod ready;
mod rules;
mod run;
mod sandbox;
mod snapshot;
pub mod sparse;
pub mod vmm;
mod warm;
mod words;

pub use archive::{LoadOptions, SaveOptions, Travelled};
pub use backend::{NAME, VmBackend};
pub use config::{Deadlines, MakePolicy, RootChoice, VmConfig};
pub use doctor::{Finding, FindingState, doctor};
pub use error::{Result, VmError};
pub use make::MakeProgress;
pub use snapshot::{SnapshotManifest, SnapshotSizes, VmSnapshot};

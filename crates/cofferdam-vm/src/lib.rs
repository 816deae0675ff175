//! The VM backend: sandboxes that are virtual machines, each with its own kernel.
//!
//! ```text
//! VmBackend --Machine--> dyn Vmm (qemu, firecracker) --process--> VM: kernel, initramfs, agent
//!     '------- cofferdam_guest::Guest ---- byte streams (virtio-serial, vsock) ----'
//! ```
//!
//! Every VMM implements one trait. QEMU also works without KVM, by emulation (tested on x86-64 only). The program in
//! `init/` prepares a booted kernel for the agent. From then on, a VM is served like a container. `docs/vm.md` is the
//! user's page, `docs/adr/0016-virtual-machines.md` has the design reasons.
//!
//! # Where to look
//!
//! - Settings from a file, the environment or options: `settings.rs`.
//! - From a spec to a VM: `plan.rs`, which is pure. The VMM trait: `vmm.rs`. The choice of VMM and accelerator:
//!   `choice.rs`.
//! - Kernel command line: `kernel_words` in `qemu/arguments.rs` and `firecracker/driver.rs`. Our own boot arguments:
//!   `init/options.rs`, compiled into both sides.
//! - QEMU's arguments: `qemu/arguments.rs`, which is pure. Firecracker's requests: `firecracker/driver.rs`.
//! - The program that runs before the agent: `init/main.rs`. A copy's own identity: `init/renew.rs`.
//! - Isolation of Firecracker: `firecracker/walls.rs`; with its own jailer: `firecracker/jailer.rs`, and `keeper/`, a
//!   program that holds its open files. The agent's streams there: `firecracker/channel.rs`.
//! - Host resources of a VMM: `bounds.rs`.
//! - Images: `image/mod.rs`; layers of container images: `image/oci.rs` and `image/layers.rs`; export:
//!   `image/carry.rs`.
//! - Snapshots: `snapshot.rs`; copies of memory: `sparse.rs` and `qemu/pages.rs`; checks before a VM from another host
//!   resumes: `archive.rs`. Snapshots for prepared sandboxes: `ready.rs`.
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
mod settings;
mod snapshot;
pub mod sparse;
pub mod vmm;
mod warm;
mod words;

pub use archive::{LoadOptions, SaveOptions, Travelled};
pub use backend::{NAME, VmBackend};
pub use config::{Deadlines, MakePolicy, RootChoice, VmConfig};
pub use doctor::doctor;
pub use error::{Result, VmError};
pub use make::MakeProgress;
pub use settings::{DEFAULT_IMAGE, HostPaths, VmSettings};
pub use snapshot::{SnapshotManifest, SnapshotSizes, VmSnapshot};

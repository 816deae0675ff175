//! The VM backend: sandboxes that are virtual machines, each with its own kernel.
//!
//! ```text
//! VmBackend --VmDescription--> dyn Vmm (qemu, firecracker) --process--> VM: kernel, initramfs, agent
//!     '------- cofferdam_guest::Guest ---- byte streams (virtio-serial, vsock) ----'
//! ```
//!
//! Every VMM implements one trait. QEMU also works without KVM, by emulation (tested on x86-64 only). The init
//! in the image prepares a booted kernel for the agent. From then on, a VM is served like a container. `docs/vm.md` is
//! the user's page, `docs/adr/0016-virtual-machines.md` has the design reasons.
//!
//! # Where to look
//!
//! - Settings from a file, the environment or options: `settings.rs`.
//! - From a spec to a VM: `plan.rs`, which is pure, and `create.rs`. The state that all sandboxes share: `state.rs`.
//! - The VMM trait: `vmm.rs`. The choice of VMM and accelerator: `choice.rs`.
//! - Kernel command line: `kernel_arguments` in `qemu/arguments.rs` and `firecracker/driver.rs`. Our own boot
//!   arguments: `crates/cofferdam-image/init/options.rs`, compiled into both sides.
//! - QEMU's arguments: `qemu/arguments.rs`, which is pure. Firecracker's requests: `firecracker/driver.rs`.
//! - Images, and the program that runs before the agent: the crate `cofferdam_image`.
//! - Isolation of Firecracker: `firecracker/confinement.rs`; with its own jailer: `firecracker/jailer.rs`, and
//!   `jail-init/`, a program that holds its open files. The agent's streams there: `firecracker/channel.rs`.
//! - Host resources of a VMM: `bounds.rs`.
//! - Disks at paths of their own: `mounts.rs`.
//! - Snapshots: `snapshot.rs`; copies of memory: `sparse.rs` and `qemu/pages.rs`; checks before a VM from another host
//!   resumes: `archive.rs`. Prepared VMs: `prepared.rs`, and the snapshots for them: `templates.rs`.
#![forbid(unsafe_code)]

mod archive;
mod backend;
mod bounds;
mod budget;
mod choice;
mod config;
mod console_tail;
mod create;
mod doctor;
mod error;
pub mod firecracker;
pub mod kvm;
mod mounts;
mod plan;
mod posture;
mod prepared;
pub mod qemu;
mod rules;
mod sandbox;
mod settings;
mod snapshot;
pub mod sparse;
mod state;
mod task;
mod templates;
mod users;
pub mod vmm;

pub use archive::{LoadOptions, SaveOptions, SnapshotDocument};
pub use backend::VmBackend;
pub use config::{Deadlines, MakePolicy, RootChoice, VmConfig};
pub use doctor::doctor;
pub use error::{Result, VmError};
pub use settings::{DEFAULT_IMAGE, HostPaths, VmSettings};
pub use snapshot::{SnapshotManifest, SnapshotSizes, VmSnapshot};
pub use state::BuildProgress;

/// The backend's name.
pub const NAME: &str = "vm";

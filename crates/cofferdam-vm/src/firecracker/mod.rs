//! Firecracker: a VMM driver, and a client of its published API.
//!
//! ```text
//! FirecrackerVmm --fork, exec--> Firecracker (its own directory, else descriptors only; no network)
//!    Client --HTTP over a Unix socket--> Firecracker --> VM --> agent
//!    Channel --vsock::connect: CONNECT port, OK port--------------^
//! ```
//!
//! The files of a VM, and of its snapshots, are passed as descriptors. The VM's directory has a link for each, under
//! names that are the same for all VMs, because a state contains the names of its disks. The isolation is Cofferdam's
//! own (`confinement`) or, if configured, that of Firecracker's jailer ([`Jailer`]).
//!
//! Every answer is untrusted: a guest that broke out of its VM controls Firecracker. So each answer has a maximum
//! length, a deadline and an expected status. No path of the API contains text from a guest.

mod channel;
mod client;
mod confinement;
mod console;
mod driver;
mod error;
mod ids;
mod jailer;
mod model;
mod owner;
mod process;
mod request;
mod socket;
mod version;
mod vm;
mod vmlinux;
pub mod vsock;

pub use client::{Client, Deadlines};
pub use driver::{FirecrackerConfig, FirecrackerVmm};
pub use ids::DriveId;
pub use jailer::Jailer;
pub use model::*;
pub use request::{Method, Request};

use crate::error::VmError;

/// Name of the program.
pub(crate) const PROGRAM: &str = "firecracker";

/// Returns an error for misbehaviour of Firecracker.
fn broken(what: impl Into<String>) -> VmError {
    VmError::Vmm { vmm: PROGRAM, what: what.into() }
}

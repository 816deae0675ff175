//! Firecracker: a driver that makes machines with it, by a client of its published API.
//!
//! ```text
//! FirecrackerVmm --fork, exec--> Firecracker (its own directory, else descriptors only; no network)
//!    Client --HTTP over a Unix socket--> Firecracker --> VM --> agent
//!    Channel --vsock::connect: CONNECT port, OK port--------------^
//! ```
//!
//! What a machine is made of, and where its states go, are descriptors. The machine's directory has a link for each, under
//! names that are the same for all machines: a state names its disks by them. The walls around it are ours (`walls`) or,
//! where that is asked for, those of Firecracker's own jailer ([`Jailer`]).
//!
//! Every answer is taken for hostile: a guest that broke out of its machine speaks with Firecracker's voice. So each has
//! a length, a deadline and a status that it must have. No path of the API is made from what a guest says.

mod channel;
mod client;
mod console;
mod driver;
mod error;
mod files;
mod ids;
mod jail;
mod jailer;
mod model;
mod owner;
mod process;
mod request;
mod socket;
mod version;
mod vm;
pub mod vsock;
mod walls;

pub use client::{Client, Deadlines};
pub use driver::{FirecrackerConfig, FirecrackerVmm};
pub use ids::{DriveId, FileName, InstanceId};
pub use jail::{GroupVersion, Groups, Jail};
pub use jailer::Jailer;
pub use model::*;
pub use process::{Firecracker, Launch};
pub use request::{Method, Request};
pub use version::{NEWEST_DESCRIBED, OLDEST, Standing, Version};

use crate::error::VmError;

/// The monitor's program.
pub(crate) const PROGRAM: &str = "firecracker";

/// Firecracker does not do what it should.
fn broken(what: impl Into<String>) -> VmError {
    VmError::Monitor { monitor: PROGRAM, what: what.into() }
}

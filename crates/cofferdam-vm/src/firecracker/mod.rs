//! Firecracker: a client of its published API, its process, and the host's side of its vsock.
//!
//! ```text
//! Client --HTTP over a Unix socket--> Firecracker --> VM --> agent
//!            vsock::connect --CONNECT port, OK port--------------^
//! ```
//!
//! Every answer is taken for hostile: a guest that broke out of its machine speaks with Firecracker's voice. So each has
//! a length, a deadline and a status that it must have. No path of the API is made from what a guest says.

mod client;
mod console;
mod error;
mod files;
mod ids;
mod jail;
mod model;
mod process;
mod request;
mod socket;
mod version;
pub mod vsock;

pub use client::{Client, Deadlines};
pub use ids::{DriveId, FileName, InstanceId};
pub use jail::{GroupVersion, Groups, Jail};
pub use model::*;
pub use process::{Firecracker, Launch};
pub use request::{Method, Request};
pub(crate) use version::of_program as version_of;
pub use version::{NEWEST_DESCRIBED, OLDEST, Standing, Version};

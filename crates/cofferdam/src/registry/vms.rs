//! VMs: images, archives of snapshots, and the creation of the backend.

use std::time::Duration;

mod archives;
mod create;
mod transfer;

pub use archives::*;
pub use cofferdam_vm::DEFAULT_IMAGE;
pub use cofferdam_vm::firecracker::Jailer;
pub use cofferdam_vm::vmm::{Acceleration, Driver};
pub use create::*;
pub use transfer::*;

/// Default time after which unused images are removed.
pub const KEEP_IMAGES: Duration = Duration::from_secs(30 * 24 * 3600);

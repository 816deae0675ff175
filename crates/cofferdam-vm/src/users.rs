//! Users for VMMs that root starts: IDs that no host uses.

use std::os::unix::fs::MetadataExt;

use crate::kvm;
use crate::vmm::Accelerator;

/// Range of user IDs that no host uses.
const FIRST_USER: u32 = 0x7200_0000;
const USERS: u32 = 0x00f0_0000;

/// Returns the ID of a user that no host uses.
pub(crate) fn unused_id() -> u32 {
    FIRST_USER + fastrand::u32(..USERS)
}

/// Returns user and group of a VMM; `None` if it keeps the caller's.
pub(crate) fn user(accelerator: Accelerator) -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let user = unused_id();
    let group = match accelerator {
        Accelerator::Tcg => None,
        // The device's own group may open it, if it has one.
        Accelerator::Kvm => std::fs::metadata(kvm::DEVICE).ok().map(|found| found.gid()).filter(|group| *group != 0),
    };
    Some((user, group.unwrap_or(user)))
}

//! Who is at the other end of a socket, as the kernel says.
//!
//! The same user is not enough: for an ordinary user a guest is a process of that user on the host, and a directory with
//! the socket in it may be lent to one. But every guest lives in a user namespace of its own, and neither a daemon nor its
//! clients do.

use std::fs::read_link;
use std::os::fd::AsFd;

use cofferdam_contract::{Error, ErrorKind, Result};
use rustix::net::sockopt::socket_peercred;

/// The process at the other end, if it belongs to the user that we are, in the user namespace that we are in.
pub(crate) fn same_user(socket: impl AsFd) -> Result<u32> {
    let refused = |why: &str| Error::new(ErrorKind::Denied, "daemon", format!("the other side {why}"));
    let other = socket_peercred(socket).map_err(|error| crate::error::os("cannot tell who is there", error))?;
    if other.uid != rustix::process::geteuid() {
        return Err(refused("belongs to another user"));
    }
    let pid = other.pid.as_raw_nonzero();
    // One that cannot be looked at, because it ended or is hidden, is not one of ours.
    let theirs = read_link(format!("/proc/{pid}/ns/user")).map_err(|_| refused("cannot be looked at"))?;
    if read_link("/proc/self/ns/user").ok() != Some(theirs) {
        return Err(refused("is in another user namespace, as a guest is"));
    }
    Ok(u32::try_from(pid.get()).unwrap_or_default())
}

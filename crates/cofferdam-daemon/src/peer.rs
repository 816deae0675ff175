//! Who is at the other end of a socket, as the kernel says.

use std::os::fd::AsFd;

use cofferdam_contract::{Error, ErrorKind, Result};
use rustix::net::sockopt::socket_peercred;

/// The process at the other end, if it belongs to the user that we are.
pub(crate) fn same_user(socket: impl AsFd) -> Result<u32> {
    let other = socket_peercred(socket).map_err(|error| crate::error::os("cannot tell who is there", error))?;
    if other.uid != rustix::process::geteuid() {
        return Err(Error::new(ErrorKind::Denied, "daemon", "the other side belongs to another user"));
    }
    Ok(u32::try_from(other.pid.as_raw_nonzero().get()).unwrap_or_default())
}

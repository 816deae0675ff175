//! Raw system calls. Every `unsafe` of the crate outside `seccomp/sys.rs` and `spawn.rs` is here or next to the one
//! structure that it passes.

use std::io;

use libc::{c_int, c_long};

/// Converts a negative result to the thread's errno.
pub(crate) fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Does the same as [`check`] for calls that return an int.
pub(crate) fn check_int(result: c_int) -> io::Result<c_int> {
    check(c_long::from(result)).map(|value| value as c_int)
}

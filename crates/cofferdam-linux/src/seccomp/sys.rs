//! The only system call of this module.
use super::assembler::Instruction;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const _: () = assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>());
const _: () = assert!(align_of::<Instruction>() == align_of::<libc::sock_filter>());

/// Calls `seccomp(SECCOMP_SET_MODE_FILTER, flags, …)` on the calling thread. Returns the kernel's result. Does not
/// allocate.
pub(super) fn install(instructions: &[Instruction], flags: libc::c_ulong) -> io::Result<i32> {
    let Ok(len) = u16::try_from(instructions.len()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let program = libc::sock_fprog { len, filter: instructions.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: `program` points to `len` instructions laid out as `sock_filter` (asserted above, and `repr(C)` with the
    // same fields); the kernel copies them during the call and writes to neither.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result >= 0 { Ok(result as i32) } else { Err(io::Error::last_os_error()) }
}

/// Installs a filter with a listener.
pub(super) fn install_with_listener(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    const NEW_LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    /// Signals with a handler wait until a received call is answered. Available since Linux 5.19. Without it, calls may
    /// fail with EINTR that never do otherwise.
    const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
    let fd = match install(instructions, NEW_LISTENER | WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(instructions, NEW_LISTENER)?,
        other => other?,
    };
    // SAFETY: with this flag the kernel returns a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a system call without memory arguments, for the test on the running kernel. Returns the errno, or 0 for
/// success.
///
/// # Panics
///
/// Panics if `number` is not a call that is known to be harmless with such arguments.
#[cfg(test)]
pub(super) fn errno_of(number: libc::c_long, arguments: [libc::c_long; 4]) -> i32 {
    let known = [
        libc::SYS_clone3,
        libc::SYS_getppid,
        libc::SYS_ioctl,
        libc::SYS_keyctl,
        libc::SYS_openat2,
        libc::SYS_prlimit64,
        libc::SYS_socket,
        libc::SYS_unshare,
    ];
    assert!(known.contains(&number), "add {number} here if it is harmless");
    let [a, b, c, d] = arguments;
    // SAFETY: the tests pass numbers and null for every argument, so the kernel writes to no memory of this process,
    // and the listed calls change only the descriptor table.
    if unsafe { libc::syscall(number, a, b, c, d) } >= 0 {
        return 0;
    }
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

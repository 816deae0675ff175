//! Probes of system calls that isolation must refuse. Each is harmless if it is allowed: with its arguments, it can
//! only fail later or change nothing.

use std::io;
use std::ptr;

/// The probed calls, each with arguments that do nothing if the call is allowed.
const CALLS: &[(&str, libc::c_long, [usize; 5])] = &[
    ("unshare", libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0]),
    ("setns", libc::SYS_setns, [usize::MAX, 0, 0, 0, 0]),
    ("mount", libc::SYS_mount, [0, 0, 0, 0, 0]),
    ("umount2", libc::SYS_umount2, [0, 0, 0, 0, 0]),
    ("pivot_root", libc::SYS_pivot_root, [0, 0, 0, 0, 0]),
    ("chroot", libc::SYS_chroot, [0, 0, 0, 0, 0]),
    ("fsopen", libc::SYS_fsopen, [0, 0, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, [usize::MAX, 0, 0, 0, 0]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [0, 0, 0, 0, 0]),
    ("userfaultfd", libc::SYS_userfaultfd, [usize::MAX, 0, 0, 0, 0]),
    ("perf_event_open", libc::SYS_perf_event_open, [0, 0, 0, 0, 0]),
    ("keyctl", libc::SYS_keyctl, [usize::MAX, 0, 0, 0, 0]),
    ("add_key", libc::SYS_add_key, [0, 0, 0, 0, 0]),
    ("request_key", libc::SYS_request_key, [0, 0, 0, 0, 0]),
    ("ptrace", libc::SYS_ptrace, [usize::MAX, 0, 0, 0, 0]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [0, 0, 0, 0, 0]),
    ("kexec_load", libc::SYS_kexec_load, [0, usize::MAX, 0, 0, 0]),
    ("init_module", libc::SYS_init_module, [0, 0, 0, 0, 0]),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [usize::MAX, 0, 0, 0, 0]),
];

/// Number of calls that [`forbidden_calls_let_through`] tries: the list, and a socket of a family that is forbidden.
pub const TRIED_CALLS: usize = CALLS.len() + 1;

/// Returns calls that isolation refuses, for probes elsewhere: name, number, and arguments that do nothing if the call
/// is allowed.
pub fn forbidden_calls() -> impl Iterator<Item = (&'static str, u64, [u64; 5])> {
    CALLS.iter().map(|(name, number, arguments)| (*name, *number as u64, arguments.map(|argument| argument as u64)))
}

/// Returns the names of calls that were not refused with EPERM.
pub fn forbidden_calls_let_through() -> impl Iterator<Item = &'static str> {
    let vsock = refused(libc::SYS_socket, [libc::AF_VSOCK as usize, libc::SOCK_STREAM as usize, 0, 0, 0]);
    let vsock = (!matches!(vsock, Some(libc::EAFNOSUPPORT | libc::EPERM))).then_some("socket(AF_VSOCK)");
    CALLS
        .iter()
        .filter(|(_, number, arguments)| refused(*number, *arguments) != Some(libc::EPERM))
        .map(|(name, _, _)| *name)
        .chain(vsock)
}

fn refused(number: libc::c_long, a: [usize; 5]) -> Option<i32> {
    // SAFETY: every pointer argument is null or out of range, which the kernel answers with EFAULT. None of the calls
    // changes the process if it is allowed, except unshare, which therefore has a flag that can at worst nest one more
    // user namespace. A descriptor that socket returns is closed again.
    unsafe {
        let result = libc::syscall(number, a[0], a[1], a[2], a[3], a[4], ptr::null::<u8>());
        if result >= 0 {
            if number == libc::SYS_socket {
                libc::close(result as i32);
            }
            return None;
        }
    }
    io::Error::last_os_error().raw_os_error()
}

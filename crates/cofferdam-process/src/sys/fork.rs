//! A launcher that is a fork of the calling process, for a program that has just started and creates one sandbox.
//!
//! A fork of a process with one thread is complete, and to execute a program costs more than everything else in a short
//! run. Data that a launcher must not have is removed first: arguments and environment are overwritten in place,
//! descriptors except its socket are closed, signals are reset as in a new program, and it gets a new session. The
//! launcher's memory still contains all data from the caller's memory at the fork. So the caller must fork first and
//! read secrets later.

use std::ffi::{CStr, c_char};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{io, ptr, slice};

use cofferdam_linux::{message, process};

use super::entry::LAUNCHER_NAME;

/// The arguments at their original addresses.
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    /// The C library's list of the environment's strings; `libc` declares it for some of them only.
    static environ: *const *const c_char;
}

/// Returns the number and the list of the arguments. The kernel stores them right below the environment, as `argc,
/// argv[0], …, argv[argc - 1], NULL, envp[0], …`. Call it before the environment can have changed.
#[cfg(target_env = "musl")]
pub fn arguments_below_environment() -> (std::ffi::c_int, *const *const c_char) {
    // SAFETY: the words are as above in every program that Linux starts, and each that is read lies between the number
    // of arguments, at which the loop ends at the latest, and the environment. No pointer is as small as their number.
    unsafe {
        let last = environ.sub(2);
        let mut count = 0usize;
        while *last.sub(count) as usize != count {
            count += 1;
        }
        (count as std::ffi::c_int, last.sub(count).add(1))
    }
}

/// Stores the address of the arguments, for [`arguments`] and to overwrite them.
pub fn remember_arguments(arguments: *const *const c_char) {
    ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
}

/// Returns the arguments without a copy, which a fork would inherit.
pub fn arguments() -> impl Iterator<Item = &'static CStr> {
    words(ARGUMENTS.load(Ordering::Relaxed))
}

/// Returns the environment's strings without a copy.
pub fn environment() -> impl Iterator<Item = &'static CStr> {
    // SAFETY: nothing changes the list while there is one thread.
    words(unsafe { environ })
}

/// Returns the strings of a list in the kernel's format.
fn words(list: *const *const c_char) -> impl Iterator<Item = &'static CStr> {
    let mut next = list;
    std::iter::from_fn(move || {
        // SAFETY: lists of arguments and of the environment, as a program gets them, end with a null pointer and hold
        // valid strings for as long as the process lives.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let word = CStr::from_ptr(*next);
            next = next.add(1);
            Some(word)
        }
    })
}

/// Forks a launcher. Returns its socket and process id, or `None` if this process has more than one thread or their
/// number is unknown.
pub fn fork() -> io::Result<Option<(OwnedFd, i32)>> {
    if threads() != Some(1) {
        return Ok(None);
    }
    let (ours, theirs) = message::pair()?;
    // SAFETY: there is no other thread, so that the child finds no lock held and every invariant intact.
    match unsafe { libc::fork() } {
        0 => become_launcher(theirs),
        pid if pid > 0 => {
            process::start_elsewhere(pid);
            Ok(Some((ours, pid)))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of threads of this process: a task directory has one link for each, besides its own two.
fn threads() -> Option<u64> {
    let stat = rustix::fs::stat("/proc/self/task").ok()?;
    (stat.st_nlink as u64).checked_sub(2)
}

fn become_launcher(socket: OwnedFd) -> ! {
    // A panic must not unwind into the caller's code, which must not run in this process.
    let code = std::panic::catch_unwind(|| {
        forget_caller();
        match process::duplicate_to(std::os::fd::AsFd::as_fd(&socket), 0) {
            Ok(()) if socket.as_raw_fd() != 0 => {
                drop(socket);
                crate::launcher::main(crate::launcher::Origin::Forked)
            }
            _ => 64,
        }
    });
    process::exit_now(code.unwrap_or(70))
}

/// Puts this process into the state of one that was executed without arguments and environment.
fn forget_caller() {
    // SAFETY: both lists are this process's own, there is no other thread, and nothing reads them from here on; the
    // strings lie on the stack's pages, which can be written. The signal calls get valid or null pointers.
    unsafe {
        wipe(words(environ));
        libc::clearenv();
        let arguments = ARGUMENTS.load(Ordering::Relaxed);
        let first = words(arguments).next();
        let size = wipe(words(arguments));
        if let Some(first) = first {
            show_name(first, size);
        }
        reset_signals();
        libc::setsid();
    }
    let _ = rustix::process::chdir("/");
}

/// Overwrites strings with zeros. Returns the size in bytes of the first ones that are contiguous.
///
/// # Safety
///
/// The strings must be writable, and no other code may use them.
unsafe fn wipe(words: impl Iterator<Item = &'static CStr>) -> usize {
    let mut size = 0;
    let mut begin = None;
    for word in words {
        let (start, length) = (word.as_ptr().cast_mut(), word.to_bytes_with_nul().len());
        if *begin.get_or_insert(start as usize) + size == start as usize {
            size += length;
        }
        for offset in 0..length {
            // SAFETY: within the string; volatile, because nothing in this program reads it again.
            unsafe { start.add(offset).write_volatile(0) };
        }
    }
    size
}

/// Sets the launcher's name in process lists, as far as it fits in place of the arguments.
///
/// # Safety
///
/// `size` bytes from `first` on must be writable, and no other code may use them.
unsafe fn show_name(first: &CStr, size: usize) {
    let name = &LAUNCHER_NAME.as_bytes()[..LAUNCHER_NAME.len().min(size.saturating_sub(1))];
    // SAFETY: the caller's promise; the name is cut to the size.
    unsafe { slice::from_raw_parts_mut(first.as_ptr().cast_mut().cast::<u8>(), name.len()) }.copy_from_slice(name);
}

/// Unblocks all signals and removes the stack for handlers. Every launcher sets the actions of signals itself.
///
/// # Safety
///
/// No other thread may exist.
unsafe fn reset_signals() {
    // SAFETY: all-zero is valid for the structures, which live through the calls.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        let mut no_stack: libc::stack_t = std::mem::zeroed();
        no_stack.ss_flags = libc::SS_DISABLE;
        libc::sigaltstack(&no_stack, ptr::null_mut());
    }
}

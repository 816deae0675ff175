//! Stopping a guest from another thread, without a signal handler.
//!
//! The guest's thread blocks one signal always; the kernel unblocks it only while the guest runs. So it is never
//! delivered: the guest just stops running. Every other signal waits meanwhile.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::sys::check_int;

/// Does nothing in a process that has no handler for it.
const SIGNAL: libc::c_int = libc::SIGURG;
/// `_IOW(0xae, 0x8b, struct kvm_signal_mask)`.
const KVM_SET_SIGNAL_MASK: u32 = 0x4004_ae8b;

/// `struct kvm_signal_mask` with the kernel's set of signals behind it.
#[repr(C)]
struct SignalMask {
    length: u32,
    blocked: [u8; 8],
}

/// Whether a guest is to stop.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Tells the thread of a guest to stop it.
    pub(super) fn tell<T>(&self, thread: &JoinHandle<T>) {
        self.0.store(true, Ordering::SeqCst);
        // SAFETY: the handle keeps the number valid; a thread that has ended is passed over.
        unsafe { libc::pthread_kill(thread.as_pthread_t() as libc::pthread_t, SIGNAL) };
    }

    pub(super) fn is_told(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Blocks the signal in the calling thread.
pub(super) fn block() -> io::Result<()> {
    let set = only_the_signal();
    // SAFETY: the set lives through the call.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Has the kernel unblock the signal, and nothing else, while this processor of a guest runs.
pub(super) fn unblock_while_running(vcpu: BorrowedFd<'_>) -> io::Result<()> {
    let blocked = !(1_u64 << (SIGNAL - 1));
    let mask = SignalMask { length: 8, blocked: blocked.to_ne_bytes() };
    // SAFETY: the structure is what the kernel reads for this request, and lives through the call.
    unsafe { check_int(libc::ioctl(vcpu.as_raw_fd(), KVM_SET_SIGNAL_MASK as _, &mask)).map(drop) }
}

/// Takes a signal of somebody else's away, which would stop the guest for ever.
pub(super) fn forget() {
    let set = only_the_signal();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both structures live through the call, which waits for nothing.
    unsafe { libc::sigtimedwait(&set, ptr::null_mut(), &at_once) };
}

fn only_the_signal() -> libc::sigset_t {
    // SAFETY: the set is initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, SIGNAL);
        set
    }
}

//! A way to stop a guest from another thread, without a signal handler.
//!
//! The guest's thread always blocks one signal. The kernel unblocks it only while the guest runs. So it is never
//! delivered: it only stops the guest. Every other signal waits meanwhile.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::sys::check_int;

/// A signal that does nothing in a process without a handler for it.
const SIGNAL: libc::c_int = libc::SIGURG;
/// `_IOW(0xae, 0x8b, struct kvm_signal_mask)`.
const KVM_SET_SIGNAL_MASK: u32 = 0x4004_ae8b;

/// `struct kvm_signal_mask`, followed by the kernel's signal set.
#[repr(C)]
struct SignalMask {
    length: u32,
    blocked: [u8; 8],
}

/// A stop request to a guest.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Requests that the thread of a guest stops it.
    pub(super) fn request<T>(&self, thread: &JoinHandle<T>) {
        self.0.store(true, Ordering::SeqCst);
        // SAFETY: the handle keeps the id valid; a thread that has ended is skipped.
        unsafe { libc::pthread_kill(thread.as_pthread_t() as libc::pthread_t, SIGNAL) };
    }

    pub(super) fn is_requested(&self) -> bool {
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

/// Makes the kernel unblock the signal, and nothing else, while this virtual processor runs.
pub(super) fn unblock_while_running(vcpu: BorrowedFd<'_>) -> io::Result<()> {
    let blocked = !(1_u64 << (SIGNAL - 1));
    let mask = SignalMask { length: 8, blocked: blocked.to_ne_bytes() };
    // SAFETY: the structure is what the kernel reads for this request, and lives through the call.
    unsafe { check_int(libc::ioctl(vcpu.as_raw_fd(), KVM_SET_SIGNAL_MASK as _, &mask)).map(drop) }
}

/// Discards a pending signal of another sender, which would stop the guest for ever.
pub(super) fn discard() {
    let set = only_the_signal();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both structures live through the call, which does not wait.
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

//! Memory functions that compiled code calls, a memory mapping, and static memory that can be taken once.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{Fd, Res, checked, number};

/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: the caller promises `length` bytes at both, which do not overlap.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
    to
}

/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    if (to as usize) <= from as usize {
        // SAFETY: copied upwards, each byte is read before it is written over.
        return unsafe { memcpy(to, from, length) };
    }
    for at in (0..length).rev() {
        // SAFETY: the caller promises `length` bytes at both; copied downwards, each is read before it is written over.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
    to
}

/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, value: i32, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: the caller promises `length` bytes.
        unsafe { to.add(at).write(value as u8) };
    }
    to
}

/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
    for at in 0..length {
        // SAFETY: the caller promises `length` bytes at both.
        let (a, b) = unsafe { (one.add(at).read(), other.add(at).read()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
    // SAFETY: the same promise.
    unsafe { memcmp(one, other, length) }
}

/// A symbol that tables of the precompiled core library need. Nothing unwinds here, so it is never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;

/// Mapped memory that is unmapped when it is dropped.
pub struct Mapping {
    address: usize,
    length: usize,
}

impl Mapping {
    /// Maps new memory, all zero.
    pub fn anonymous(length: usize) -> Res<Self> {
        Self::new(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, usize::MAX)
    }

    /// Maps a file's contents for reading, of at most `max` bytes.
    pub fn file(fd: &Fd, max: usize) -> Res<Self> {
        const SEEK_END: usize = 2;
        // SAFETY: plain numbers.
        let length = unsafe { checked(super::call(number::LSEEK, [fd.raw(), 0, SEEK_END, 0, 0, 0])) }?;
        if length > max {
            return Err(super::EBADMSG);
        }
        Self::new(length, PROT_READ, MAP_PRIVATE, fd.raw())
    }

    fn new(length: usize, protection: usize, flags: usize, fd: usize) -> Res<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { checked(super::call(number::MMAP, [0, length, protection, flags, fd, 0])) }?;
        Ok(Self { address, length })
    }

    /// Returns the contents.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, readable and initialised, as long as `self` lives.
        unsafe { core::slice::from_raw_parts(self.address as *const u8, self.length) }
    }

    /// Returns the contents of anonymous memory for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped and initialised as long as `self` lives, and there is no other reference to it; only `file`
        // maps without the right to write, and its callers use `bytes`.
        unsafe { core::slice::from_raw_parts_mut(self.address as *mut u8, self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference outlives `self`.
        unsafe { super::call(number::MUNMAP, [self.address, self.length, 0, 0, 0, 0]) };
    }
}

/// Static memory that can be taken once. Zeroed, it takes no space in the program's file, and no memory until it is
/// used.
pub struct Once<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `take` returns only one reference.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns the memory to the first caller, and `None` to others.
    #[expect(clippy::mut_from_ref, reason = "it is returned once")]
    pub fn take(&'static self) -> Option<&'static mut T> {
        // There is one thread, so a load and a store suffice; a swap may need a library on some processors.
        if self.taken.load(Ordering::Relaxed) {
            return None;
        }
        self.taken.store(true, Ordering::Relaxed);
        // SAFETY: reached once, so that this is the only reference.
        Some(unsafe { &mut *self.value.get() })
    }
}

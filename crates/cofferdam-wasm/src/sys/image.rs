//! The initial content of a linear memory.

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::slot::Mapping;

/// The page size of linear memories.
pub(crate) const WASM_PAGE: usize = 64 << 10;
/// The granularity at which zeros are omitted from the file.
const PIECE: usize = 4096;

/// The initial content of a linear memory: zeros, except for one range in a sealed file.
pub(crate) struct Image {
    /// The length of the memory, in whole WebAssembly pages.
    size: usize,
    stretch: Option<Stretch>,
    /// Unused mappings of this image, all in its initial state.
    free: Mutex<Vec<Mapping>>,
}

/// The range of an image that is not zero, with a read-only mapping to copy from.
pub(super) struct Stretch {
    pub(super) file: File,
    /// The offset in the memory. Offset and length are multiples of the WebAssembly page size.
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) view: NonNull<u8>,
}

// SAFETY: the view is of a sealed file, is read only, and lives as long as the stretch.
unsafe impl Send for Stretch {}
// SAFETY: as above.
unsafe impl Sync for Stretch {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Image {
    /// Creates an image of `size` bytes with these pieces. Later pieces overwrite earlier ones.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if a piece is outside of the memory or the size is not a multiple of the page size; else the
    /// error of the system.
    pub(crate) fn new<'a>(
        size: usize,
        pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
    ) -> io::Result<Arc<Self>> {
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, "a piece of the image is outside of the memory");
        if !size.is_multiple_of(WASM_PAGE) || size > 1 << 32 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the memory size is not a multiple of the page size",
            ));
        }
        let (mut first, mut last) = (usize::MAX, 0);
        for (start, bytes) in pieces.clone() {
            let end = start.checked_add(bytes.len()).filter(|end| *end <= size).ok_or_else(outside)?;
            if !bytes.is_empty() {
                (first, last) = (first.min(start), last.max(end));
            }
        }
        let stretch = if last == 0 { None } else { Some(Stretch::new(first, last, pieces)?) };
        Ok(Arc::new(Self { size, stretch, free: Mutex::default() }))
    }

    /// Copies the current content of a memory.
    pub(crate) fn of(memory: &[u8]) -> io::Result<Arc<Self>> {
        let zero = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
        let pieces = memory.chunks(PIECE).enumerate().filter(|(_, piece)| !zero(piece));
        Self::new(memory.len(), pieces.map(|(number, piece)| (number * PIECE, piece)))
    }

    /// Returns the length of the memory.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the offset and the bytes of the range that is not zero.
    pub(crate) fn contents(&self) -> (usize, &[u8]) {
        let Some(stretch) = &self.stretch else { return (0, &[]) };
        // SAFETY: the view is `length` bytes of a file that is sealed against writing and shrinking.
        let bytes = unsafe { std::slice::from_raw_parts(stretch.view.as_ptr(), stretch.length) };
        (stretch.start, bytes)
    }

    /// Appends the bytes of a range to `to`.
    pub(super) fn append(&self, offset: usize, length: usize, to: &mut Vec<u8>) {
        let (start, bytes) = self.contents();
        let end = offset + length;
        let (from, until) = (offset.clamp(start, start + bytes.len()), end.clamp(start, start + bytes.len()));
        let base = to.len();
        to.resize(base + length, 0);
        if from < until {
            to[base + from - offset..base + until - offset].copy_from_slice(&bytes[from - start..until - start]);
        }
    }

    pub(super) fn stretch(&self) -> Option<&Stretch> {
        self.stretch.as_ref()
    }

    pub(super) fn free(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.free.lock()
    }
}

impl Stretch {
    fn new<'a>(first: usize, last: usize, pieces: impl Iterator<Item = (usize, &'a [u8])>) -> io::Result<Self> {
        let start = first / WASM_PAGE * WASM_PAGE;
        let length = last.next_multiple_of(WASM_PAGE) - start;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let file = match memfd_create("wasm-image", flags) {
            // Before Linux 6.3.
            Err(rustix::io::Errno::INVAL) => {
                memfd_create("wasm-image", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            }
            other => other,
        };
        let file = File::from(file?);
        file.set_len(length as u64)?;
        for (at, bytes) in pieces {
            file.write_all_at(bytes, (at - start) as u64)?;
        }
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        // SAFETY: the kernel chooses the address of the new mapping.
        let view = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }?;
        let view = NonNull::new(view.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { file, start, length, view })
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this stretch, and no references to it remain.
        let _ = unsafe { munmap(self.view.as_ptr().cast::<c_void>(), self.length) };
    }
}

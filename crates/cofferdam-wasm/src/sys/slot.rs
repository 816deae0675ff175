//! Reusable private mappings of images.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType, Store};

use super::image::Image;
use super::pagemap::{is_ours, own_pages};

/// Bytes of written pages that a free slot keeps mapped, since the next guest probably writes to the same pages.
const MAX_RESIDENT: usize = 1 << 20;
/// The maximum number of free slots of one image.
const MAX_FREE: usize = 16;

thread_local! {
    /// The image of the next memory that this thread creates, then the memory.
    static NEXT: RefCell<Next> = const { RefCell::new(Next::None) };
}

enum Next {
    None,
    Image(Arc<Image>),
    Created(Arc<Shared>),
}

/// Runs `make`, in which the first created memory starts as `image`. Also returns a handle of that memory.
pub(crate) fn with_image<T>(image: &Arc<Image>, make: impl FnOnce() -> T) -> (T, Option<Handle>) {
    /// Clears the thread-local, also if `make` panics.
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            NEXT.set(Next::None);
        }
    }
    NEXT.set(Next::Image(Arc::clone(image)));
    let _reset = Reset;
    let created = make();
    match NEXT.replace(Next::None) {
        Next::Created(shared) => (created, Some(Handle(shared))),
        _ => (created, None),
    }
}

/// The memory of an instance.
pub(crate) struct Handle(Arc<Shared>);

impl Handle {
    /// Resets the memory to its image. Returns false if it has grown: then it cannot be reset.
    ///
    /// The store must be that of the memory. Its borrow ensures that no guest code runs and that no references to the
    /// memory exist.
    pub(crate) fn restore<T>(&self, _store: &mut Store<T>) -> bool {
        let mut state = self.0.lock();
        let size = state.size;
        let Some(mapping) = state.mapping.as_mut() else { return false };
        size == self.0.image.size() && mapping.reset(&self.0.image).is_ok()
    }
}

/// The address space of one linear memory: its bytes, followed by inaccessible pages.
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// The length of the whole address space, guard included.
    reserved: usize,
    /// The accessible bytes from the base.
    open: usize,
    /// The offsets and lengths of the pages that differ from the file, as of the last scan.
    own: Vec<(usize, usize)>,
    /// The image's bytes of these pages, concatenated, which is faster to read than scattered pages.
    originals: Vec<u8>,
    /// The page faults of this process just before the last complete scan of `own`.
    faults: Option<u64>,
}

// SAFETY: the memory belongs to the mapping. The owner of the mapping controls all access to it.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference to a mapping gives only its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(image: &Image, reserved: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address of the new mapping.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?;
        let mut mapping = Self { base, reserved, open: 0, own: Vec::new(), originals: Vec::new(), faults: None };
        mapping.open_to(image.size())?;
        if let Some(stretch) = image.stretch() {
            let (read_write, fixed) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
            // SAFETY: the stretch is in the part of this mapping that was just made accessible.
            unsafe { mmap(mapping.at(stretch.start), stretch.length, read_write, fixed, &stretch.file, 0) }?;
        }
        // With huge pages a small write would copy a large page. Pages that the kernel merges reveal by the time of a
        // write whether another process has the same page. Kernels without either feature reject the advice, which is
        // harmless.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxUnmergeable] {
            // SAFETY: the advice concerns this process's own mapping.
            let _ = unsafe { madvise(base.as_ptr().cast(), reserved, advice) };
        }
        Ok(mapping)
    }

    fn at(&self, offset: usize) -> *mut c_void {
        debug_assert!(offset <= self.reserved);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }

    /// Makes more of the mapping accessible; the new part is zero.
    fn open_to(&mut self, size: usize) -> io::Result<()> {
        if size > self.open {
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: this part of the mapping was inaccessible, so there are no references to it.
            unsafe { mprotect(self.at(self.open), size - self.open, flags) }?;
            self.open = size;
        }
        Ok(())
    }

    /// Resets the mapping to the image. It must not be in use.
    fn reset(&mut self, image: &Image) -> io::Result<()> {
        if self.open > image.size() {
            let (from, length) = (self.at(image.size()), self.open - image.size());
            // SAFETY: there are no references to this part of the mapping.
            unsafe {
                madvise(from, length, Advice::LinuxDontNeed)?;
                mprotect(from, length, MprotectFlags::empty())?;
            }
            self.open = image.size();
        }
        self.restore_pages(image).or_else(|_| self.discard_pages())
    }

    /// Overwrites the written pages with the image's, up to a limit, and discards those beyond it.
    ///
    /// A page can differ from the file only after a page fault. So while the process takes none, the last scan is
    /// complete. Reading the fault counter is much cheaper than a scan. It is read before the scan, so that concurrent
    /// changes are found by the next scan: another thread may lock all memory of the process at any time. A forked
    /// child starts a new count, and always scans.
    fn restore_pages(&mut self, image: &Image) -> io::Result<()> {
        let faults = page_faults();
        if !is_ours() || self.faults != Some(faults) {
            self.scan(image)?;
            self.faults = Some(faults);
        }
        let mut originals = &self.originals[..];
        for (offset, length) in &self.own {
            let (original, rest) = originals.split_at(*length);
            originals = rest;
            // SAFETY: the pages are in the accessible part of this mapping, which is not in use.
            unsafe { std::ptr::copy_nonoverlapping(original.as_ptr(), self.base.as_ptr().add(*offset), *length) };
        }
        Ok(())
    }

    /// Finds the pages that differ from the file, and discards those beyond the limit.
    fn scan(&mut self, image: &Image) -> io::Result<()> {
        self.own.clear();
        self.originals.clear();
        self.faults = None;
        let base = self.base.as_ptr() as usize;
        let mut resident = 0;
        let (mut own, mut discarded) = (std::mem::take(&mut self.own), Vec::new());
        let stretch = image.stretch().map_or(0..0, |stretch| stretch.start..stretch.start + stretch.length);
        own_pages(base..base + self.open, |pages, zero| {
            let (mut from, mut until) = (pages.start - base, pages.end - base);
            if zero {
                (from, until) = (from.max(stretch.start), until.min(stretch.end));
            }
            let (offset, length) = (from, until.saturating_sub(from));
            if length == 0 {
                return;
            }
            let list = if resident + length <= MAX_RESIDENT { &mut own } else { &mut discarded };
            list.push((offset, length));
            resident += length;
        })?;
        for (offset, length) in discarded {
            // SAFETY: as in `restore_pages`.
            unsafe { madvise(self.at(offset), length, Advice::LinuxDontNeed) }?;
        }
        for (offset, length) in &own {
            image.append(*offset, *length, &mut self.originals);
        }
        self.own = own;
        Ok(())
    }

    /// Discards all pages, so that the file's pages and zeros appear again.
    fn discard_pages(&mut self) -> io::Result<()> {
        if self.open > 0 {
            // SAFETY: the mapping is not in use.
            unsafe { madvise(self.at(0), self.open, Advice::LinuxDontNeed) }?;
        }
        Ok(())
    }
}

/// Returns the page faults of this process, in all of its threads.
fn page_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is valid for writing, and all zeros is a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt.cast_unsigned().wrapping_add(usage.ru_majflt.cast_unsigned())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and there are no references to it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

/// The linear memory of an instance.
struct Slot(Arc<Shared>);

/// The state that an instance and the handle of its memory share.
struct Shared {
    state: Mutex<State>,
    image: Arc<Image>,
    base: usize,
    /// The maximum size.
    capacity: usize,
}

struct State {
    /// `None` once the instance is gone.
    mapping: Option<Mapping>,
    size: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Slot {
    fn new(image: Arc<Image>, capacity: usize, guard: usize) -> io::Result<Self> {
        let reserved = capacity.checked_add(guard).ok_or(io::ErrorKind::OutOfMemory)?;
        let found = image.free().pop();
        let mapping = match found {
            Some(mapping) if mapping.reserved == reserved => mapping,
            _ => Mapping::new(&image, reserved)?,
        };
        let base = mapping.base.as_ptr().expose_provenance();
        let state = Mutex::new(State { mapping: Some(mapping), size: image.size() });
        Ok(Self(Arc::new(Shared { state, image, base, capacity })))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(mut mapping) = self.0.lock().mapping.take() else { return };
        let image = &self.0.image;
        // A mapping that cannot be reset is not used again.
        if image.free().len() < MAX_FREE && mapping.reset(image).is_ok() {
            image.free().push(mapping);
        }
    }
}

// SAFETY: the address never changes while the slot lives; `byte_size` bytes from it can be read and written, and
// accesses behind them, to the end of capacity and guard, trap.
unsafe impl LinearMemory for Slot {
    fn byte_size(&self) -> usize {
        self.0.lock().size
    }

    fn byte_capacity(&self) -> usize {
        self.0.capacity
    }

    fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        let mut state = self.0.lock();
        let mapping = state.mapping.as_mut().filter(|_| size <= self.0.capacity);
        mapping.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?.open_to(size)?;
        state.size = size;
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.base)
    }
}

/// The creator of linear memories: of the image that [`with_image`] sets, else of zeros.
#[derive(Debug, Default)]
pub(crate) struct Slots;

// SAFETY: each memory has its own address space, with the requested guard behind it.
unsafe impl MemoryCreator for Slots {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        _: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let next = NEXT.replace(Next::None);
        let has_image = matches!(next, Next::Image(_));
        let image = match next {
            Next::Image(image) if image.size() >= minimum => image,
            Next::Image(_) => return Err("the image is smaller than the memory".to_owned()),
            _ => Image::new(minimum, std::iter::empty()).map_err(|error| error.to_string())?,
        };
        let capacity = reserved.unwrap_or_default().max(image.size());
        let slot = Slot::new(image, capacity, guard).map_err(|error| format!("cannot map the memory: {error}"))?;
        if has_image {
            NEXT.set(Next::Created(Arc::clone(&slot.0)));
        }
        Ok(Box::new(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(mapping: &Mapping, at: usize) -> u8 {
        // SAFETY: the address is in the accessible part of a mapping that no other code uses.
        unsafe { mapping.base.as_ptr().add(at).read_volatile() }
    }

    fn write(mapping: &mut Mapping, at: usize) {
        // SAFETY: as above.
        unsafe { mapping.base.as_ptr().add(at).write_volatile(9) };
    }

    #[test]
    fn forked_child_ignores_the_fault_count_of_its_parent() {
        let image = Image::new(1 << 16, [(5000, &[1; 100][..])].into_iter()).unwrap();
        let mut mapping = Mapping::new(&image, 1 << 17).unwrap();
        write(&mut mapping, 0);
        mapping.reset(&image).unwrap();
        assert!(mapping.faults.is_some());
        // SAFETY: the child uses only the mapping, and exits.
        match unsafe { libc::fork() } {
            0 => {
                let clean = (0..4).all(|_| {
                    write(&mut mapping, 5000);
                    write(&mut mapping, 60_000);
                    // The worst case: the child's new count equals the parent's. From the second round on, these writes
                    // cause no page faults.
                    mapping.faults = Some(page_faults());
                    let reset = mapping.reset(&image).is_ok();
                    reset && written(&mapping, 5000) == 1 && written(&mapping, 60_000) == 0
                });
                // SAFETY: the child must not run the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!clean)) }
            }
            child => {
                let mut status = -1;
                // SAFETY: the status is valid for writing, and the process is this one's child.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child saw its earlier writes");
            }
        }
    }

    #[test]
    fn locked_memory_is_put_back_or_not_used_again() {
        let image = Image::new(32 << 16, [(70_000, &[1; 100][..])].into_iter()).unwrap();
        let mut mapping = Mapping::new(&image, 33 << 16).unwrap();
        // All pages become private at once. Without the permission to lock memory the test shows nothing.
        // SAFETY: the mapping belongs to this test.
        let locked = unsafe { rustix::mm::mlock(mapping.at(0), mapping.open) };
        for _ in 0..3 {
            [0, 70_000, 2_000_000].iter().for_each(|at| write(&mut mapping, *at));
            let reset = mapping.reset(&image);
            assert!(locked.is_ok() || reset.is_ok());
            if reset.is_ok() {
                assert_eq!([0, 70_000, 2_000_000].map(|at| written(&mapping, at)), [0, 1, 0]);
            }
        }
    }

    #[test]
    fn pages_changed_while_idle_are_restored() {
        let image = Image::new(4 << 16, [(70_000, &[1; 100][..])].into_iter()).unwrap();
        drop(Slot::new(Arc::clone(&image), 4 << 16, 1 << 16).unwrap());
        let free = image.free().pop().unwrap();
        // SAFETY: the mapping belongs to this test.
        unsafe { madvise(free.at(0), free.open, Advice::LinuxPopulateWrite) }.unwrap();
        image.free().push(free);
        let slot = Slot::new(Arc::clone(&image), 4 << 16, 1 << 16).unwrap();
        // There are no page faults from here on.
        let mut mapping = slot.0.lock().mapping.take().unwrap();
        [0, 70_000, 200_000].iter().for_each(|at| write(&mut mapping, *at));
        mapping.reset(&image).unwrap();
        assert_eq!([0, 70_000, 200_000].map(|at| written(&mapping, at)), [0, 1, 0]);
    }

    #[test]
    fn pages_changed_by_another_thread_are_restored() {
        let image = Image::new(4 << 16, [(70_000, &[1; 100][..])].into_iter()).unwrap();
        let mut mapping = Mapping::new(&image, 5 << 16).unwrap();
        write(&mut mapping, 0);
        mapping.reset(&image).unwrap();
        let (start, length) = (mapping.at(0).addr(), mapping.open);
        let populate = move || {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the mapping lives until the thread has ended, and this does not change its content.
            unsafe { madvise(start, length, Advice::LinuxPopulateWrite) }
        };
        let populated = std::thread::spawn(populate).join();
        assert!(populated.is_ok_and(|populated| populated.is_ok()));
        // This thread takes no page faults: all pages are present.
        [0, 70_000, 200_000].iter().for_each(|at| write(&mut mapping, *at));
        mapping.reset(&image).unwrap();
        assert_eq!([0, 70_000, 200_000].map(|at| written(&mapping, at)), [0, 1, 0]);
    }
}

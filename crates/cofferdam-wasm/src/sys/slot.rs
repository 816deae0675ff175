//! Private mappings of images, used again and again.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType, Store};

use super::image::Image;
use super::pagemap::{is_ours, own_pages};

/// Bytes of written pages that a free slot keeps: the next guest most likely writes to the same.
const KEPT: usize = 1 << 20;
/// Free slots of one image.
const MAX_FREE: usize = 16;

thread_local! {
    /// The image of the memory that this thread makes next, then the memory.
    static NEXT: RefCell<Next> = const { RefCell::new(Next::None) };
}

enum Next {
    None,
    Image(Arc<Image>),
    Made(Arc<Shared>),
}

/// Does `make`, in which the first memory that is made begins as `image`; gives a handle of that memory, too.
pub(crate) fn with_image<T>(image: &Arc<Image>, make: impl FnOnce() -> T) -> (T, Option<Handle>) {
    /// Takes what is left away, also when the making fails.
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            NEXT.set(Next::None);
        }
    }
    NEXT.set(Next::Image(Arc::clone(image)));
    let _reset = Reset;
    let made = make();
    match NEXT.replace(Next::None) {
        Next::Made(shared) => (made, Some(Handle(shared))),
        _ => (made, None),
    }
}

/// A memory that an instance uses.
pub(crate) struct Handle(Arc<Shared>);

impl Handle {
    /// Makes the memory as its image is. Of no use after it has grown: then the answer is `false`.
    ///
    /// The store is the one that the memory is in: that it is borrowed says that nothing of it runs, and that nobody
    /// looks at the memory.
    pub(crate) fn restore<T>(&self, _store: &mut Store<T>) -> bool {
        let mut state = self.0.lock();
        let size = state.size;
        let Some(mapping) = state.mapping.as_mut() else { return false };
        size == self.0.image.size() && mapping.reset(&self.0.image).is_ok()
    }
}

/// Address space of one linear memory: its bytes, and behind them what traps.
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// All of the address space, guard included.
    reserved: usize,
    /// Bytes from the base that can be reached.
    open: usize,
    /// Offsets and lengths of the pages that were found to be its own when somebody last looked.
    own: Vec<(usize, usize)>,
    /// What the image has in these, one after the other: the processor finds that faster than pages here and there.
    originals: Vec<u8>,
    /// How many page faults this process had taken just before `own` was found to be all of it.
    faults: Option<u64>,
}

// SAFETY: the memory is the mapping's own; whoever has the mapping decides who reads and writes.
unsafe impl Send for Mapping {}
// SAFETY: a shared mapping gives its address and nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(image: &Image, reserved: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?;
        let mut mapping = Self { base, reserved, open: 0, own: Vec::new(), originals: Vec::new(), faults: None };
        mapping.open_to(image.size())?;
        if let Some(stretch) = image.stretch() {
            let (read_write, fixed) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
            // SAFETY: the stretch lies in the part of our own mapping that was just opened.
            unsafe { mmap(mapping.at(stretch.start), stretch.length, read_write, fixed, &stretch.file, 0) }?;
        }
        // Large pages would make each write a large one, and pages that the kernel merges with others tell by the time
        // of a write what others have. Where there is neither, that is as well.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxUnmergeable] {
            // SAFETY: advice on our own mapping.
            let _ = unsafe { madvise(base.as_ptr().cast(), reserved, advice) };
        }
        Ok(mapping)
    }

    fn at(&self, offset: usize) -> *mut c_void {
        debug_assert!(offset <= self.reserved);
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }

    /// Lets more of it be reached; what is new is zero.
    fn open_to(&mut self, size: usize) -> io::Result<()> {
        if size > self.open {
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: this part of our own mapping was not used by anybody.
            unsafe { mprotect(self.at(self.open), size - self.open, flags) }?;
            self.open = size;
        }
        Ok(())
    }

    /// Makes it as the image is. Nothing may use it.
    fn reset(&mut self, image: &Image) -> io::Result<()> {
        if self.open > image.size() {
            let (from, length) = (self.at(image.size()), self.open - image.size());
            // SAFETY: nobody uses this part of our own mapping any more.
            unsafe {
                madvise(from, length, Advice::LinuxDontNeed)?;
                mprotect(from, length, MprotectFlags::empty())?;
            }
            self.open = image.size();
        }
        self.put_back(image).or_else(|_| self.forget())
    }

    /// Writes over what was written, up to a bound; what is beyond it goes.
    ///
    /// A page becomes its own by a page fault and not otherwise, so that while the process takes none, what was its own
    /// before is all there is. Asking the kernel for the faults is much cheaper than looking at every page. The count is
    /// taken before the look, so that what comes meanwhile is seen the next time: another thread may lock all memory of
    /// the process at any moment. A child that was forked counts its faults anew, and looks always.
    fn put_back(&mut self, image: &Image) -> io::Result<()> {
        let faults = page_faults();
        if !is_ours() || self.faults != Some(faults) {
            self.look(image)?;
            self.faults = Some(faults);
        }
        let mut originals = &self.originals[..];
        for (offset, length) in &self.own {
            let (original, rest) = originals.split_at(*length);
            originals = rest;
            // SAFETY: the pages lie in the open part of our own mapping, which nobody uses.
            unsafe { std::ptr::copy_nonoverlapping(original.as_ptr(), self.base.as_ptr().add(*offset), *length) };
        }
        Ok(())
    }

    /// Finds the pages that are its own, and lets those go that are too many to keep.
    fn look(&mut self, image: &Image) -> io::Result<()> {
        self.own.clear();
        self.originals.clear();
        self.faults = None;
        let base = self.base.as_ptr() as usize;
        let mut kept = 0;
        let (mut own, mut gone) = (std::mem::take(&mut self.own), Vec::new());
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
            let list = if kept + length <= KEPT { &mut own } else { &mut gone };
            list.push((offset, length));
            kept += length;
        })?;
        for (offset, length) in gone {
            // SAFETY: as in `put_back`.
            unsafe { madvise(self.at(offset), length, Advice::LinuxDontNeed) }?;
        }
        for (offset, length) in &own {
            image.append(*offset, *length, &mut self.originals);
        }
        self.own = own;
        Ok(())
    }

    /// Lets all pages go: the file's stand for those of the stretch, and zeros for the rest.
    fn forget(&mut self) -> io::Result<()> {
        if self.open > 0 {
            // SAFETY: nobody uses our own mapping.
            unsafe { madvise(self.at(0), self.open, Advice::LinuxDontNeed) }?;
        }
        Ok(())
    }
}

/// Page faults that this process has taken, in all of its threads.
fn page_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is valid for writing, and all zeros is a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt.cast_unsigned().wrapping_add(usage.ru_majflt.cast_unsigned())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and nobody uses it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

/// A linear memory in use: the instance's.
struct Slot(Arc<Shared>);

/// What an instance and the handle of its memory share.
struct Shared {
    state: Mutex<State>,
    image: Arc<Image>,
    base: usize,
    /// What it can grow to.
    capacity: usize,
}

struct State {
    /// `None` once the instance is gone.
    mapping: Option<Mapping>,
    size: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        // What could not be put back is not used again.
        if image.free().len() < MAX_FREE && mapping.reset(image).is_ok() {
            image.free().push(mapping);
        }
    }
}

// SAFETY: the address never changes while the slot lives; `byte_size` bytes from it can be read and written, and what
// follows, to the end of capacity and guard, traps.
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

/// Makes linear memories: of the image that [`with_image`] names, else of zeros.
#[derive(Debug, Default)]
pub(crate) struct Slots;

// SAFETY: each memory has address space of its own, with the guard that is asked for behind it.
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
        let wanted = matches!(next, Next::Image(_));
        let image = match next {
            Next::Image(image) if image.size() >= minimum => image,
            Next::Image(_) => return Err("the image is smaller than the memory".to_owned()),
            _ => Image::new(minimum, std::iter::empty()).map_err(|error| error.to_string())?,
        };
        let capacity = reserved.unwrap_or_default().max(image.size());
        let slot =
            Slot::new(image, capacity, guard).map_err(|error| format!("no address space for the memory: {error}"))?;
        if wanted {
            NEXT.set(Next::Made(Arc::clone(&slot.0)));
        }
        Ok(Box::new(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(mapping: &Mapping, at: usize) -> u8 {
        // SAFETY: the place lies in the open part of a mapping that nobody else uses.
        unsafe { mapping.base.as_ptr().add(at).read_volatile() }
    }

    fn write(mapping: &mut Mapping, at: usize) {
        // SAFETY: as above.
        unsafe { mapping.base.as_ptr().add(at).write_volatile(9) };
    }

    #[test]
    fn a_forked_child_does_not_trust_what_its_parent_counted() {
        let image = Image::new(1 << 16, [(5000, &[1; 100][..])].into_iter()).unwrap();
        let mut mapping = Mapping::new(&image, 1 << 17).unwrap();
        write(&mut mapping, 0);
        mapping.reset(&image).unwrap();
        assert!(mapping.faults.is_some());
        // SAFETY: the child uses the mapping, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let clean = (0..4).all(|_| {
                    write(&mut mapping, 5000);
                    write(&mut mapping, 60_000);
                    // The worst case: its count, which began anew, is just what the parent's was. From the second round
                    // on nothing in here is a page fault any more.
                    mapping.faults = Some(page_faults());
                    let reset = mapping.reset(&image).is_ok();
                    reset && written(&mapping, 5000) == 1 && written(&mapping, 60_000) == 0
                });
                // SAFETY: nothing of the parent's is to run here.
                unsafe { libc::_exit(i32::from(!clean)) }
            }
            child => {
                let mut status = -1;
                // SAFETY: the status is valid for writing, and the child is our own.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child saw what it had written before");
            }
        }
    }

    #[test]
    fn locked_memory_is_put_back_or_not_used_again() {
        let image = Image::new(32 << 16, [(70_000, &[1; 100][..])].into_iter()).unwrap();
        let mut mapping = Mapping::new(&image, 33 << 16).unwrap();
        // All pages become its own at once. Where locking is not allowed there is nothing to see.
        // SAFETY: the mapping is our own.
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
    fn what_became_its_own_while_nobody_used_it_is_put_back() {
        let image = Image::new(4 << 16, [(70_000, &[1; 100][..])].into_iter()).unwrap();
        drop(Slot::new(Arc::clone(&image), 4 << 16, 1 << 16).unwrap());
        let free = image.free().pop().unwrap();
        // SAFETY: the mapping is our own.
        unsafe { madvise(free.at(0), free.open, Advice::LinuxPopulateWrite) }.unwrap();
        image.free().push(free);
        let slot = Slot::new(Arc::clone(&image), 4 << 16, 1 << 16).unwrap();
        // No page fault from here on.
        let mut mapping = slot.0.lock().mapping.take().unwrap();
        [0, 70_000, 200_000].iter().for_each(|at| write(&mut mapping, *at));
        mapping.reset(&image).unwrap();
        assert_eq!([0, 70_000, 200_000].map(|at| written(&mapping, at)), [0, 1, 0]);
    }

    #[test]
    fn what_another_thread_made_its_own_is_put_back() {
        let image = Image::new(4 << 16, [(70_000, &[1; 100][..])].into_iter()).unwrap();
        let mut mapping = Mapping::new(&image, 5 << 16).unwrap();
        write(&mut mapping, 0);
        mapping.reset(&image).unwrap();
        let (start, length) = (mapping.at(0).addr(), mapping.open);
        let populate = move || {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the mapping lives until the thread has ended, and is not changed by this.
            unsafe { madvise(start, length, Advice::LinuxPopulateWrite) }
        };
        let populated = std::thread::spawn(populate).join();
        assert!(populated.is_ok_and(|populated| populated.is_ok()));
        // No fault of this thread: all pages are there.
        [0, 70_000, 200_000].iter().for_each(|at| write(&mut mapping, *at));
        mapping.reset(&image).unwrap();
        assert_eq!([0, 70_000, 200_000].map(|at| written(&mapping, at)), [0, 1, 0]);
    }
}

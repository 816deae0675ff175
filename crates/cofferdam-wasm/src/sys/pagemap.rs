//! Detection of the pages of a private mapping that differ from its file.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// The maximum number of regions of one call. An interpreter writes to some hundred.
const REGIONS: usize = 512;

const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of the kernel.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    room: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    wanted: u64,
}

// SAFETY: `PAGEMAP_SCAN` reads and writes a `Scan` and writes at most `room` regions.
unsafe impl Ioctl for &mut Scan {
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Scan>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(*self).cast()
    }

    // SAFETY: reads only the number and does not dereference the pointer.
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        usize::try_from(out).map_err(|_| rustix::io::Errno::INVAL)
    }
}

/// The page map of this process. A forked child must not use it as its own.
struct PageMap {
    file: File,
    /// A page of its own with the value 1, which the kernel clears in every child.
    fork_marker: NonNull<u8>,
}

// SAFETY: the marker is written before any other thread sees it, is only read from then on, and is never unmapped.
unsafe impl Send for PageMap {}
// SAFETY: as above.
unsafe impl Sync for PageMap {}

static PAGE_MAP: OnceLock<Option<PageMap>> = OnceLock::new();

impl PageMap {
    fn open() -> Option<Self> {
        let file = File::open("/proc/self/pagemap").ok()?;
        let (length, flags) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses the address of the new mapping.
        let marker = unsafe { mmap_anonymous(std::ptr::null_mut(), length, flags, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: the advice concerns this process's own mapping.
        unsafe { madvise(marker, length, Advice::LinuxWipeOnFork) }.ok()?;
        let marker = NonNull::new(marker.cast::<u8>())?;
        // SAFETY: the mapping is writable, and no other code knows it yet.
        unsafe { marker.as_ptr().write_volatile(1) };
        Some(Self { file, fork_marker: marker })
    }

    fn is_ours(&self) -> bool {
        // SAFETY: the page stays mapped. Volatile, because a fork changes it.
        unsafe { self.fork_marker.as_ptr().read_volatile() == 1 }
    }
}

fn page_map() -> Option<&'static PageMap> {
    PAGE_MAP.get_or_init(PageMap::open).as_ref().filter(|map| map.is_ours())
}

/// Returns true if results of [`own_pages`] concern this process, and not one that it was forked from.
pub(super) fn is_ours() -> bool {
    page_map().is_some()
}

/// Calls `seen` with each range of pages in `range` that are not the file's, in memory or in swap, and whether they are
/// the kernel's zero page. In anonymous memory the zero page stands for pages that were never written. In a mapping of
/// a file it stands for a written page that the kernel later found to be zero.
///
/// # Errors
///
/// If the kernel cannot report the pages. `seen` may have been called for some of them.
pub(super) fn own_pages(range: Range<usize>, mut seen: impl FnMut(Range<usize>, bool)) -> io::Result<()> {
    let map = page_map().ok_or(io::ErrorKind::Unsupported)?;
    let mut regions = [Region { start: 0, end: 0, categories: 0 }; REGIONS];
    let mut at = range.start;
    while at < range.end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start: at as u64,
            end: range.end as u64,
            walk_end: 0,
            regions: regions.as_mut_ptr() as u64,
            room: REGIONS as u64,
            max_pages: 0,
            inverted: IS_FILE,
            all_of: IS_FILE,
            any_of: IS_PRESENT | IS_SWAPPED,
            wanted: IS_PRESENT | IS_ZERO_PAGE,
        };
        // SAFETY: the opcode matches the structure, and `regions` is valid for the given number of elements.
        let count = unsafe { rustix::ioctl::ioctl(map.file.as_fd(), &mut scan) }?;
        for region in regions.iter().take(count) {
            seen(region.start as usize..region.end as usize, region.categories & IS_ZERO_PAGE != 0);
        }
        let walked = scan.walk_end as usize;
        if walked <= at || walked > range.end {
            return Err(io::ErrorKind::Other.into());
        }
        at = walked;
    }
    Ok(())
}

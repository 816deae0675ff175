//! Copying of a restored VM's memory: a private mapping of a file, of which the VM changed some pages.
//!
//! The kernel reports these pages and their contents through files of the VMM's process. The VMM is not involved. If it
//! changes its memory, it only affects its own copy, or gets none.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::process::{Gid, Uid};

use crate::sparse::{PAGE, Quota, copy_part, write_pages};

/// Maximum length of the list of mappings.
const MAX_MAPS: u64 = 16 << 20;
/// Number of pages whose state is read at once.
const PAGEMAP_CHUNK: usize = 1 << 15;
/// Number of pages that are copied at once.
const COPY_CHUNK: usize = 64;
/// Bits of a pagemap entry: present, swapped out, backed by a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// A process, and its user if that differs from this process's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub pid: u32,
    pub user: Option<(u32, u32)>,
}

/// A mapped part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    /// Offset in the file.
    offset: u64,
}

/// Copies the first `length` bytes of the process's mapping of `base` into a file that is one hole. The VM must be
/// paused.
pub(crate) fn copy(owner: Owner, base: &File, into: &File, length: u64, quota: &mut Quota) -> Result<()> {
    let [maps, pagemap, memory] = open(owner)?;
    let mut text = String::new();
    maps.take(MAX_MAPS).read_to_string(&mut text)?;
    let found = base.metadata()?;
    let regions = regions(&text, (found.dev(), found.ino()), length)
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the VMM does not map all of the VM's memory"))?;
    let page = PAGE as u64;
    let mut copied = 0;
    let mut chunk = vec![0; COPY_CHUNK * PAGE];
    for region in regions {
        let mut entries = vec![0; PAGEMAP_CHUNK * 8];
        let mut at = region.start;
        while at < region.end {
            let pages = ((region.end - at) / page).min(PAGEMAP_CHUNK as u64) as usize;
            pagemap.read_exact_at(&mut entries[..pages * 8], at / page * 8)?;
            for run in own_pages(&entries[..pages * 8]) {
                let offset = |index: usize| region.offset + (at - region.start) + index as u64 * page;
                copy_part(base, into, copied..offset(run.start), quota)?;
                for first in run.clone().step_by(COPY_CHUNK) {
                    let bytes = (run.end - first).min(COPY_CHUNK) * PAGE;
                    memory.read_exact_at(&mut chunk[..bytes], at + first as u64 * page)?;
                    write_pages(into, &chunk[..bytes], offset(first), quota)?;
                }
                copied = offset(run.end);
            }
            at += pages as u64 * page;
        }
    }
    copy_part(base, into, copied..length, quota)
}

/// Opens the process's files in procfs. Even without the privilege to inspect other users' processes, a process may be
/// inspected by its own user.
fn open(owner: Owner) -> Result<[File; 3]> {
    let all = move || -> Result<[File; 3]> {
        let open = |name: &str| File::open(format!("/proc/{}/{name}", owner.pid));
        Ok([open("maps")?, open("pagemap")?, open("mem")?])
    };
    match (all(), owner.user) {
        (Err(error), Some((user, group))) if error.kind() == ErrorKind::PermissionDenied => {
            // Only this thread becomes that user, and it ends after opening them.
            let opened = std::thread::spawn(move || {
                rustix::thread::set_thread_gid(Gid::from_raw(group))?;
                rustix::thread::set_thread_uid(Uid::from_raw(user))?;
                all()
            });
            opened.join().unwrap_or(Err(error))
        }
        (opened, _) => opened,
    }
}

/// Returns the mappings of the file in order, if they cover it from its beginning to `length`.
fn regions(maps: &str, (device, inode): (u64, u64), length: u64) -> Option<Vec<Region>> {
    let mut all: Vec<Region> = maps.lines().filter_map(|line| region(line, device, inode)).collect();
    all.sort_by_key(|region| region.offset);
    let mut end = 0;
    for region in &all {
        if region.offset != end || region.start % PAGE as u64 != 0 {
            return None;
        }
        end += region.end.checked_sub(region.start)?;
    }
    (end == length).then_some(all)
}

/// Parses a line such as `7f00-7f10 rw-p 00000000 00:01 2765 /memfd:x (deleted)`, if it is a mapping of the file.
fn region(line: &str, device: u64, inode: u64) -> Option<Region> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (_permissions, offset, found) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = found.split_once(':')?;
    let found = rustix::fs::makedev(number(major)?.try_into().ok()?, number(minor)?.try_into().ok()?);
    let same = found == device && fields.next()?.parse() == Ok(inode);
    let region = Region { start: number(start)?, end: number(end)?, offset: number(offset)? };
    same.then_some(region)
}

/// Returns runs of private pages, given pagemap entries.
fn own_pages(entries: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, entry) in entries.chunks_exact(8).enumerate() {
        let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
        if entry & OF_FILE != 0 || entry & (PRESENT | SWAPPED) == 0 {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == index => last.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00401000 r-xp 00000000 fe:00 99                         /usr/bin/x
7f0000002000-7f0000004000 rw-p 00001000 00:01 2765               /memfd:cofferdam (deleted)
7f0000000000-7f0000001000 rw-p 00000000 00:01 2765               /memfd:cofferdam (deleted)
7f0000005000-7f0000006000 rw-p 00000000 00:01 2766               /memfd:cofferdam (deleted)
7f0000006000-7f0000007000 rw-p 00000000 00:00 0 
";

    #[test]
    fn the_files_mappings_are_found_if_they_are_all_there() {
        let one = Region { start: 0x7f00_0000_0000, end: 0x7f00_0000_1000, offset: 0 };
        let two = Region { start: 0x7f00_0000_2000, end: 0x7f00_0000_4000, offset: 0x1000 };
        assert_eq!(regions(MAPS, (1, 2765), 0x3000), Some(vec![one, two]));
        for (device, inode, length) in [(1, 2765, 0x4000), (1, 2765, 0x2000), (2, 2765, 0x3000), (1, 1, 0x1000)] {
            assert_eq!(regions(MAPS, (device, inode), length), None, "{device} {inode} {length}");
        }
        for odd in ["", "x", "1-2", "1-2 rw-p 0 0:1 x", "2-1 rw-p 0 00:01 5 x", "1001-2001 rw-p 0 00:01 5"] {
            assert_eq!(regions(odd, (1, 5), 0x1000), None, "{odd}");
        }
    }

    #[test]
    fn private_pages_are_distinguished_from_file_pages() {
        let entries = [0, PRESENT, PRESENT | 7, PRESENT | OF_FILE, SWAPPED, OF_FILE, PRESENT];
        let bytes: Vec<u8> = entries.into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(own_pages(&bytes), [1..3, 4..5, 6..7]);
    }
}

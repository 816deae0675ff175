//! Memory of a machine that it has for itself alone: a private mapping of a file, of which it changed some pages.
//!
//! The kernel tells which pages those are, and gives their contents, by files of the monitor's process. The monitor is
//! asked for nothing. Whatever it does to its memory, it gets a copy of what it has there, or none.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::process::{Gid, Uid};

use crate::sparse::{PAGE, Quota, copy_part, write_pages};

/// The longest list of mappings that is read.
const MAX_MAPS: u64 = 16 << 20;
/// Pages that are asked for at once.
const ASKED: usize = 1 << 15;
/// Pages that are copied at once.
const COPIED: usize = 64;
/// What the kernel says of a page: it is there; it was moved out; it is a file's.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// A process, and as whom it runs where that is not this process's user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub pid: u32,
    pub user: Option<(u32, u32)>,
}

/// A part of the file in the process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    /// Where in the file it begins.
    offset: u64,
}

/// Copies the memory that the process has of `base`, its first `length` bytes, to a file that is one hole. The machine must
/// stand still.
pub(crate) fn copy(owner: Owner, base: &File, into: &File, length: u64, room: &mut Quota) -> Result<()> {
    let [maps, pagemap, memory] = open(owner)?;
    let mut text = String::new();
    maps.take(MAX_MAPS).read_to_string(&mut text)?;
    let found = base.metadata()?;
    let regions = regions(&text, (found.dev(), found.ino()), length)
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the monitor has not all of the machine's memory"))?;
    let page = PAGE as u64;
    let mut copied = 0;
    let mut piece = vec![0; COPIED * PAGE];
    for region in regions {
        let mut entries = vec![0; ASKED * 8];
        let mut at = region.start;
        while at < region.end {
            let pages = ((region.end - at) / page).min(ASKED as u64) as usize;
            pagemap.read_exact_at(&mut entries[..pages * 8], at / page * 8)?;
            for run in own_pages(&entries[..pages * 8]) {
                let place = |index: usize| region.offset + (at - region.start) + index as u64 * page;
                copy_part(base, into, copied..place(run.start), room)?;
                for first in run.clone().step_by(COPIED) {
                    let bytes = (run.end - first).min(COPIED) * PAGE;
                    memory.read_exact_at(&mut piece[..bytes], at + first as u64 * page)?;
                    write_pages(into, &piece[..bytes], place(first), room)?;
                }
                copied = place(run.end);
            }
            at += pages as u64 * page;
        }
    }
    copy_part(base, into, copied..length, room)
}

/// The process's own files. Where a user's right to look at other users' processes was taken away, its own are still its.
fn open(owner: Owner) -> Result<[File; 3]> {
    let all = move || -> Result<[File; 3]> {
        let open = |name: &str| File::open(format!("/proc/{}/{name}", owner.pid));
        Ok([open("maps")?, open("pagemap")?, open("mem")?])
    };
    match (all(), owner.user) {
        (Err(error), Some((user, group))) if error.kind() == ErrorKind::PermissionDenied => {
            // Only this thread is that user, and it ends when it has opened them.
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

/// Where the file is mapped, from its beginning to `length` without a gap, in order.
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

/// A line such as `7f00-7f10 rw-p 00000000 00:01 2765 /memfd:x (deleted)`, if it is about the file.
fn region(line: &str, device: u64, inode: u64) -> Option<Region> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (_rights, offset, place) = (words.next()?, words.next()?, words.next()?);
    let (major, minor) = place.split_once(':')?;
    let found = rustix::fs::makedev(number(major)?.try_into().ok()?, number(minor)?.try_into().ok()?);
    let same = found == device && words.next()?.parse() == Ok(inode);
    let region = Region { start: number(start)?, end: number(end)?, offset: number(offset)? };
    same.then_some(region)
}

/// Runs of pages that are the process's own, of what the kernel says of each.
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
    fn own_pages_are_told_from_those_of_the_file() {
        let entries = [0, PRESENT, PRESENT | 7, PRESENT | OF_FILE, SWAPPED, OF_FILE, PRESENT];
        let bytes: Vec<u8> = entries.into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(own_pages(&bytes), [1..3, 4..5, 6..7]);
    }
}

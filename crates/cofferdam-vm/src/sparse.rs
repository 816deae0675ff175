//! Files with holes, and copies of them that have the same ones.
//!
//! Memory lies in files of the kernel's memory, which can be sealed: whoever may open such a file, a monitor that was taken
//! over among them, can map and read it, and nobody can change it. Disks lie in files without names in a directory of the
//! owner's; where the file system shares blocks between files, a copy of one is made by that.

use std::fs::{DirBuilder, File};
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, ioctl_ficlone, memfd_create, seek,
};
use rustix::io::Errno;

/// The bytes of a page.
pub(crate) const PAGE: usize = 4096;
const PIECE: usize = 64 * PAGE;
static ZEROS: [u8; PAGE] = [0; PAGE];

/// A file of the kernel's memory that is one hole.
///
/// # Errors
///
/// What the system says.
pub fn blank(length: u64) -> Result<File> {
    let file = File::from(memfd_create("cofferdam", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(length)?;
    Ok(file)
}

/// How often sealing is tried while the kernel holds pages of the file. It waits about 150 ms each time by itself.
const MAX_SEAL_ATTEMPTS: usize = 20;

/// Seals a file of [`blank`] against every change. Idempotent.
///
/// The kernel refuses that while it holds a page for a moment itself, as for reclaim or migration.
///
/// # Errors
///
/// What the system says, such as for a file of another kind, or one that is mapped so that it can be written to.
pub fn seal(file: &File) -> Result<()> {
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    if fcntl_get_seals(file)?.contains(all) {
        return Ok(());
    }
    for _ in 1..MAX_SEAL_ATTEMPTS {
        match fcntl_add_seals(file, all) {
            Err(Errno::BUSY) => {}
            other => return Ok(other?),
        }
    }
    Ok(fcntl_add_seals(file, all)?)
}

/// Bytes that a file takes, without its holes.
///
/// # Errors
///
/// What the system says.
pub fn allocated(file: &File) -> Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

/// Where a file has no holes, at and after a place.
fn next_data(file: &File, at: u64) -> Result<Option<Range<u64>>> {
    let begin = match seek(file, SeekFrom::Data(at)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(begin..seek(file, SeekFrom::Hole(begin))?))
}

/// What was written so far, and how much that may come to.
#[derive(Debug)]
pub(crate) struct Room {
    left: u64,
}

impl Room {
    pub(crate) fn new(most: u64) -> Self {
        Self { left: most }
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => self.left = left,
            None => return Err(ErrorKind::QuotaExceeded.into()),
        }
        Ok(())
    }
}

/// Writes some pages to a place, but those of zeros, which must be holes there.
pub(crate) fn write_pages(into: &File, pages: &[u8], at: u64, room: &mut Room) -> Result<()> {
    let is_zero = |page: &[u8]| page == &ZEROS[..page.len()];
    // Where the run of pages begins that are to be written.
    let mut begin = None;
    for place in (0..=pages.len()).step_by(PAGE).chain((!pages.len().is_multiple_of(PAGE)).then_some(pages.len())) {
        let page = &pages[place..pages.len().min(place + PAGE)];
        match begin {
            Some(first) if is_zero(page) => {
                room.take(place - first)?;
                into.write_all_at(&pages[first..place], at + first as u64)?;
                begin = None;
            }
            None if !is_zero(page) => begin = Some(place),
            _ => {}
        }
    }
    Ok(())
}

/// Copies a part of a file to the same place of another, which is a hole there. Holes and pages of zeros stay holes.
pub(crate) fn copy_part(from: &File, into: &File, part: Range<u64>, room: &mut Room) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = part.start;
    while at < part.end {
        let Some(data) = next_data(from, at)? else { return Ok(()) };
        let (mut place, end) = (data.start.max(at), data.end.min(part.end));
        while place < end {
            let length = usize::try_from(end - place).map_or(PIECE, |left| left.min(PIECE));
            from.read_exact_at(&mut piece[..length], place)?;
            write_pages(into, &piece[..length], place, room)?;
            place += length as u64;
        }
        at = data.end.max(at + 1);
    }
    Ok(())
}

/// A copy of some memory: a file of [`blank`] of at most so many bytes besides holes.
///
/// # Errors
///
/// What the system says; `QuotaExceeded` for more.
pub fn copy_memory(from: &File, most: u64) -> Result<File> {
    let length = from.metadata()?.len();
    let into = blank(length)?;
    copy_part(from, &into, 0..length, &mut Room::new(most))?;
    Ok(into)
}

/// A copy of a disk: a file without a name in `directory`, which is made if it is missing.
///
/// # Errors
///
/// What the system says.
pub fn copy_disk(from: &File, directory: &Path) -> Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let into = tempfile::tempfile_in(directory)?;
    if ioctl_ficlone(&into, from).is_ok() {
        return Ok(into);
    }
    let length = from.metadata()?.len();
    into.set_len(length)?;
    let mut at = 0;
    while let Some(data) = next_data(from, at)? {
        copy_range(from, &into, data.start..data.end.min(length))?;
        at = data.end;
    }
    Ok(into)
}

/// Has the kernel copy, where it can, and copies by hand elsewhere.
fn copy_range(from: &File, into: &File, part: Range<u64>) -> Result<()> {
    let Range { mut start, end } = part;
    while start < end {
        let left = usize::try_from(end - start).unwrap_or(usize::MAX);
        let (mut read, mut written) = (start, start);
        match rustix::fs::copy_file_range(from, Some(&mut read), into, Some(&mut written), left) {
            Ok(0) => return Err(Error::new(ErrorKind::UnexpectedEof, "the disk became shorter")),
            Ok(count) => start += count as u64,
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                return copy_part(from, into, start..end, &mut Room::new(u64::MAX));
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn sample(file: &File) {
        file.set_len(1 << 22).unwrap();
        file.write_all_at(&[1; 5000], 3 * PAGE as u64).unwrap();
        file.write_all_at(&[0; 8 * PAGE], 100 * PAGE as u64).unwrap();
        file.write_all_at(&[2; PAGE], 500 * PAGE as u64).unwrap();
        file.write_all_at(&[3; 10], (1 << 22) - 10).unwrap();
    }

    fn whole(file: &File) -> Vec<u8> {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        all
    }

    #[test]
    fn copies_are_alike_and_keep_their_holes() {
        let from = blank(0).unwrap();
        sample(&from);
        let into = blank(1 << 22).unwrap();
        copy_part(&from, &into, 0..1 << 22, &mut Room::new(u64::MAX)).unwrap();
        assert!(whole(&from) == whole(&into));
        assert_eq!(allocated(&into).unwrap(), 4 * PAGE as u64);
        let place = tempfile::tempdir().unwrap();
        let disk = tempfile::tempfile_in(place.path()).unwrap();
        sample(&disk);
        let copy = copy_disk(&disk, &place.path().join("new")).unwrap();
        assert!(whole(&disk) == whole(&copy) && allocated(&copy).unwrap() <= allocated(&disk).unwrap());
        let elsewhere = copy_disk(&from, place.path()).unwrap();
        assert!(whole(&elsewhere) == whole(&from));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn parts_are_copied_and_nothing_around_them() {
        let from = blank(0).unwrap();
        sample(&from);
        let into = blank(1 << 22).unwrap();
        let page = PAGE as u64;
        copy_part(&from, &into, 4 * page..500 * page, &mut Room::new(u64::MAX)).unwrap();
        let (from, into) = (whole(&from), whole(&into));
        assert!(from[4 * PAGE..500 * PAGE] == into[4 * PAGE..500 * PAGE]);
        assert!(into[..4 * PAGE].iter().chain(&into[500 * PAGE..]).all(|byte| *byte == 0));
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        let from = blank(0).unwrap();
        sample(&from);
        let into = blank(1 << 22).unwrap();
        for (most, fits) in [(4, true), (3, false)] {
            let copied = copy_part(&from, &into, 0..1 << 22, &mut Room::new(most * PAGE as u64));
            assert_eq!(copied.is_ok(), fits, "{most}: {copied:?}");
        }
    }

    #[test]
    fn what_is_sealed_stays_as_it_is() {
        let mut file = blank(PAGE as u64).unwrap();
        file.write_all(b"x").unwrap();
        seal(&file).unwrap();
        seal(&file).unwrap();
        assert!(file.write_all(b"y").is_err() && file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let named = tempfile::NamedTempFile::new().unwrap();
        assert!(seal(named.as_file()).is_err());
    }
}

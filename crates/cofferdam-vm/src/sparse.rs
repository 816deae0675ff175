//! Sparse files, and copies of them that keep their holes.
//!
//! Memory is stored in memfds, which can be sealed: a process that may open such a file, such as a compromised VMM, can
//! map and read it, and cannot change it. Disks are unnamed files in a directory of the owner; where the file system
//! supports reflinks, a copy shares blocks.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use cofferdam_util::private;
use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, ioctl_ficlone, memfd_create, seek,
};
use rustix::io::Errno;

/// Size of a page.
pub(crate) const PAGE: usize = 4096;
const PIECE: usize = 64 * PAGE;
static ZEROS: [u8; PAGE] = [0; PAGE];

/// Creates a memfd that is one hole.
///
/// # Errors
///
/// The system's error.
pub fn blank(length: u64) -> Result<File> {
    let file = File::from(memfd_create("cofferdam", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(length)?;
    Ok(file)
}

/// Maximum attempts to seal a file while the kernel holds pages of it. The kernel itself waits about 150 ms in each
/// attempt.
const MAX_SEAL_ATTEMPTS: usize = 20;

/// Seals a file of [`blank`] against every change. Idempotent.
///
/// The kernel refuses to seal while it holds a page briefly itself, as for reclaim or migration.
///
/// # Errors
///
/// The system's error, such as for another kind of file, or one that is mapped writable.
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

/// Returns the allocated bytes of a file, without its holes.
///
/// # Errors
///
/// The system's error.
pub fn allocated(file: &File) -> Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

/// Returns the next range of data at or after an offset.
fn next_data(file: &File, at: u64) -> Result<Option<Range<u64>>> {
    let begin = match seek(file, SeekFrom::Data(at)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(begin..seek(file, SeekFrom::Hole(begin))?))
}

/// A limit on the bytes that may still be written.
#[derive(Debug)]
pub(crate) struct Quota {
    left: u64,
}

impl Quota {
    pub(crate) fn new(max: u64) -> Self {
        Self { left: max }
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => self.left = left,
            None => return Err(ErrorKind::QuotaExceeded.into()),
        }
        Ok(())
    }
}

/// Writes pages at an offset, except pages of zeros, which must be holes there.
pub(crate) fn write_pages(into: &File, pages: &[u8], at: u64, quota: &mut Quota) -> Result<()> {
    let is_zero = |page: &[u8]| page == &ZEROS[..page.len()];
    // The start of the current run of pages to write.
    let mut begin = None;
    for offset in (0..=pages.len()).step_by(PAGE).chain((!pages.len().is_multiple_of(PAGE)).then_some(pages.len())) {
        let page = &pages[offset..pages.len().min(offset + PAGE)];
        match begin {
            Some(first) if is_zero(page) => {
                quota.take(offset - first)?;
                into.write_all_at(&pages[first..offset], at + first as u64)?;
                begin = None;
            }
            None if !is_zero(page) => begin = Some(offset),
            _ => {}
        }
    }
    Ok(())
}

/// Copies a part of a file to the same offset of another, which is a hole there. Holes and pages of zeros stay holes.
pub(crate) fn copy_part(from: &File, into: &File, part: Range<u64>, quota: &mut Quota) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = part.start;
    while at < part.end {
        let Some(data) = next_data(from, at)? else { return Ok(()) };
        let (mut offset, end) = (data.start.max(at), data.end.min(part.end));
        while offset < end {
            let length = usize::try_from(end - offset).map_or(PIECE, |left| left.min(PIECE));
            from.read_exact_at(&mut piece[..length], offset)?;
            write_pages(into, &piece[..length], offset, quota)?;
            offset += length as u64;
        }
        at = data.end.max(at + 1);
    }
    Ok(())
}

/// Copies memory into a new file of [`blank`], with a maximum of allocated bytes.
///
/// # Errors
///
/// The system's error; `QuotaExceeded` above the maximum.
pub fn copy_memory(from: &File, max: u64) -> Result<File> {
    let length = from.metadata()?.len();
    let into = blank(length)?;
    copy_part(from, &into, 0..length, &mut Quota::new(max))?;
    Ok(into)
}

/// Copies a disk into an unnamed file in `directory`, which is created if it is missing.
///
/// # Errors
///
/// The system's error.
pub fn copy_disk(from: &File, directory: &Path) -> Result<File> {
    private::create_directory(directory)?;
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

/// Copies a range in the kernel if possible, else through a buffer.
fn copy_range(from: &File, into: &File, part: Range<u64>) -> Result<()> {
    let Range { mut start, end } = part;
    while start < end {
        let left = usize::try_from(end - start).unwrap_or(usize::MAX);
        let (mut read, mut written) = (start, start);
        match rustix::fs::copy_file_range(from, Some(&mut read), into, Some(&mut written), left) {
            Ok(0) => return Err(Error::new(ErrorKind::UnexpectedEof, "the disk was truncated while it was copied")),
            Ok(count) => start += count as u64,
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                return copy_part(from, into, start..end, &mut Quota::new(u64::MAX));
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
        copy_part(&from, &into, 0..1 << 22, &mut Quota::new(u64::MAX)).unwrap();
        assert!(whole(&from) == whole(&into));
        assert_eq!(allocated(&into).unwrap(), 4 * PAGE as u64);
        let temp = tempfile::tempdir().unwrap();
        let disk = tempfile::tempfile_in(temp.path()).unwrap();
        sample(&disk);
        let copy = copy_disk(&disk, &temp.path().join("new")).unwrap();
        assert!(whole(&disk) == whole(&copy) && allocated(&copy).unwrap() <= allocated(&disk).unwrap());
        let elsewhere = copy_disk(&from, temp.path()).unwrap();
        assert!(whole(&elsewhere) == whole(&from));
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn parts_are_copied_and_nothing_around_them() {
        let from = blank(0).unwrap();
        sample(&from);
        let into = blank(1 << 22).unwrap();
        let page = PAGE as u64;
        copy_part(&from, &into, 4 * page..500 * page, &mut Quota::new(u64::MAX)).unwrap();
        let (from, into) = (whole(&from), whole(&into));
        assert!(from[4 * PAGE..500 * PAGE] == into[4 * PAGE..500 * PAGE]);
        assert!(into[..4 * PAGE].iter().chain(&into[500 * PAGE..]).all(|byte| *byte == 0));
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        let from = blank(0).unwrap();
        sample(&from);
        let into = blank(1 << 22).unwrap();
        for (max, succeeds) in [(4, true), (3, false)] {
            let copied = copy_part(&from, &into, 0..1 << 22, &mut Quota::new(max * PAGE as u64));
            assert_eq!(copied.is_ok(), succeeds, "{max}: {copied:?}");
        }
    }

    #[test]
    fn sealed_file_cannot_change() {
        let mut file = blank(PAGE as u64).unwrap();
        file.write_all(b"x").unwrap();
        seal(&file).unwrap();
        seal(&file).unwrap();
        assert!(file.write_all(b"y").is_err() && file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let named = tempfile::NamedTempFile::new().unwrap();
        assert!(seal(named.as_file()).is_err());
    }
}

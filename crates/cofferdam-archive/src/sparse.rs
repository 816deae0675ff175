//! Sparse files: reading skips holes and writing creates them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::record::PAGE;

const ZERO: [u8; PAGE] = [0; PAGE];

/// Returns true if these bytes, at most a page, are all zero. It compares memory, which the C library vectorizes.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes == &ZERO[..bytes.len()]
}

/// Returns the first offset from `from` on that is not known to be a hole, or `size` if only a hole is left. Moves the
/// file's cursor.
pub(crate) fn next_data(file: &File, from: u64, size: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(at) => Ok(at.clamp(from, size)),
        Err(Errno::NXIO) => Ok(size),
        // The file system does not report holes: everything may be data.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(from),
        Err(error) => Err(error.into()),
    }
}

/// Writes pages to a hole of the file. Zero pages stay holes.
pub(crate) fn write_pages(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut offset = 0;
    for run in bytes.chunks(PAGE).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let length: usize = run.iter().map(|page| page.len()).sum();
        if !is_zero(run[0]) {
            file.write_all_at(&bytes[offset..offset + length], at + offset as u64)?;
        }
        offset += length;
    }
    Ok(())
}

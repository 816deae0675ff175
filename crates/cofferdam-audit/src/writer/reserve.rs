//! Disk space that is reserved for the records of executions that have begun.

use std::fs::File;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::Writer;
use crate::error::failed;
use crate::line::MAX_LINE;
use crate::{Error, Result, names};

/// The size of the reserve after the end of the log, which only records of begun executions may use: 64 of the longest
/// lines.
pub(super) const RESERVE: u64 = 64 * MAX_LINE as u64;
/// The space allocated beyond the reserve, so that not every execution calls the file system.
const AHEAD: u64 = 64 * 1024;

impl Writer {
    /// Makes sure that the segment has space for a line and for the reserve after it.
    pub(crate) fn reserve_space(&mut self) -> Result<()> {
        let Some(end) = &mut self.end else { return Ok(()) };
        let needed = MAX_LINE as u64 + RESERVE;
        // Allocated blocks do not lift a limit on file sizes.
        within_file_limit(end.size + needed)?;
        if end.allocated < end.size + needed {
            end.allocated = allocate(&end.file, end.size, needed + AHEAD, &names::segment(end.segment))?;
        }
        Ok(())
    }

    /// Allocates as much of the reserve as possible, after the segment was truncated and lost it.
    pub(super) fn restore_reserve(&mut self) {
        let Some(end) = &mut self.end else { return };
        let (name, mut bytes) = (names::segment(end.segment), RESERVE);
        end.allocated = 0;
        while bytes >= MAX_LINE as u64 && allocate(&end.file, end.size, bytes, &name).is_err() {
            bytes /= 2;
        }
    }
}

/// Allocates blocks from an offset of a file without changing its length. Returns the offset of their end.
///
/// If the file system does not support that, only compares with the free space, which other processes may use first,
/// and returns 0.
pub(super) fn allocate(file: &File, offset: u64, bytes: u64, name: &str) -> Result<u64> {
    within_file_limit(offset + bytes)?;
    loop {
        match fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes) {
            Ok(()) => return Ok(offset + bytes),
            Err(Errno::INTR) => {}
            Err(Errno::NOTSUP | Errno::NOSYS) => return check_free_space(file, bytes, name).map(|()| 0),
            Err(error) => return Err(failed("reserve space in", name)(error)),
        }
    }
}

/// Fails if a file of this size would exceed the process's limit, beyond which a write kills the process by a signal.
pub(super) fn within_file_limit(size: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(max) if size > max => {
            Err(Error::NoSpace { doing: "write under the limit on file sizes in", name: "the segment".to_owned() })
        }
        _ => Ok(()),
    }
}

fn check_free_space(file: &File, bytes: u64, name: &str) -> Result<()> {
    let stat = fstatvfs(file).map_err(failed("get the free space for", name))?;
    if stat.f_bavail.saturating_mul(stat.f_frsize) < bytes {
        return Err(Error::NoSpace { doing: "reserve space in", name: name.to_owned() });
    }
    Ok(())
}

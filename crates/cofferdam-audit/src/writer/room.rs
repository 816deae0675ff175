//! Room on the disk for lines that must be written later.

use std::fs::File;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::Writer;
use crate::error::failed;
use crate::{Error, Result, names};

/// Taken at once where there is plenty, so that not every line asks the file system.
const AHEAD: u64 = 256 * 1024;

impl Writer {
    /// Makes sure that so many bytes can be appended to the segment.
    pub(super) fn make_room(&mut self, need: u64) -> Result<()> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        // Blocks that were taken say nothing about how long a file may become.
        within_file_limit(tail.size + need)?;
        if tail.room >= tail.size + need {
            return Ok(());
        }
        tail.room = take(&tail.file, tail.size, need, &names::segment(tail.segment))?;
        Ok(())
    }
}

/// Takes blocks behind the end of a file, without changing its length. Says up to where they are.
///
/// Where the file system has no such call, there is only a look at what is free, which others can take before it is used.
pub(super) fn take(file: &File, size: u64, need: u64, name: &str) -> Result<u64> {
    within_file_limit(size + need)?;
    if need == 0 {
        return Ok(size);
    }
    match allocate(file, size, need + AHEAD) {
        Ok(()) => Ok(size + need + AHEAD),
        Err(Errno::NOTSUP | Errno::NOSYS) => free(file, need, name).map(|()| 0),
        Err(_) => {
            let taken = allocate(file, size, need);
            taken.map(|()| size + need).map_err(failed("reserve room in", name))
        }
    }
}

/// A process may be bounded in the size of its files, and is killed by a signal when it writes beyond.
pub(super) fn within_file_limit(size: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if size > most => {
            Err(Error::NoSpace { doing: "write under the limit on file sizes in", name: "the segment".to_owned() })
        }
        _ => Ok(()),
    }
}

fn allocate(file: &File, size: u64, need: u64) -> Result<(), Errno> {
    loop {
        match fallocate(file, FallocateFlags::KEEP_SIZE, size, need) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn free(file: &File, need: u64, name: &str) -> Result<()> {
    let stat = fstatvfs(file).map_err(failed("look at the disk of", name))?;
    if stat.f_bavail.saturating_mul(stat.f_frsize) < need {
        return Err(Error::NoSpace { doing: "reserve room in", name: name.to_owned() });
    }
    Ok(())
}

//! Files of the store, opened by their names in a directory that is open.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Directory with the files of a volume without a size.
pub(crate) const FILES: &str = "files";
/// File system of a volume with a size.
pub(crate) const DISK: &str = "disk.ext4";
/// Properties of a volume.
pub(crate) const RECORD: &str = "volume.json";
/// The lock of a volume, with the list of its users.
pub(crate) const LOCK: &str = "lock";
/// Maximum size of a record.
const MAX_RECORD: u64 = 4096;

pub(crate) fn directory(above: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, name, flags, Mode::empty())?)
}

pub(crate) fn create_directory(above: impl AsFd, name: &str, mode: u32) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(&above, name, Mode::RWXU)?;
    let created = directory(above, name)?;
    rustix::fs::fchmod(&created, Mode::from_raw_mode(mode))?;
    Ok(created)
}

/// Opens a plain file. Files of the store are never links, and never devices.
pub(crate) fn open(above: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(above, name, flags, Mode::RUSR | Mode::WUSR)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(Errno::INVAL.into()) }
}

pub(crate) fn read_small(above: impl AsFd, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(above, name, OFlags::RDONLY)?.take(MAX_RECORD).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces a small file atomically and durably.
pub(crate) fn replace(above: impl AsFd, name: &str, contents: &[u8]) -> io::Result<()> {
    cofferdam_util::private::replace_file(above, name, format!("{name}.new"), contents)
}

pub(crate) fn unlink(above: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(above, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

//! Files of the host that a template copies.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Minor versions of Python 3 that may have settings in `/etc`.
const PYTHON_MINORS: u32 = 32;

/// Reads a file of a known length. One read is enough, unless it has grown since.
pub(super) fn read_once(file: &OwnedFd, length: usize) -> io::Result<Vec<u8>> {
    let mut contents = Vec::with_capacity(length + 1);
    rustix::io::read(file, rustix::buffer::spare_capacity(&mut contents))?;
    Ok(contents)
}

/// Returns directories such as `/etc/python3` and `/etc/python3.11`, with a few settings that Debian's interpreter
/// reads at start. They are searched for by name, because listing a host's `/etc` takes long.
pub(super) fn python_settings() -> impl Iterator<Item = PathBuf> {
    let versions = (0..PYTHON_MINORS).map(|minor| format!("/etc/python3.{minor}"));
    std::iter::once("/etc/python3".to_owned()).chain(versions).map(PathBuf::from).filter(|path| path.is_dir())
}

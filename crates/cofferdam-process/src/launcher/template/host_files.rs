//! Files of the host that a template copies.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Minor versions of Python 3 that may have settings in `/etc`.
const PYTHON_MINORS: u32 = 32;
/// Versions of OpenJDK that may have settings in `/etc`, and the directories with those that every program needs.
const JAVAS: std::ops::Range<u32> = 8..40;
const JAVA_SETTINGS: [&str; 3] = ["", "security", "security/policy/unlimited"];

/// Reads a file of a known length. One read is enough, unless it has grown since.
pub(super) fn read_once(file: &OwnedFd, length: usize) -> io::Result<Vec<u8>> {
    let mut contents = Vec::with_capacity(length + 1);
    rustix::io::read(file, rustix::buffer::spare_capacity(&mut contents))?;
    Ok(contents)
}

/// Returns directories with a few settings that Debian's Python and Java read at start, such as `/etc/python3.11` and
/// `/etc/java-17-openjdk`. They are searched for by name, because listing a host's `/etc` takes long.
pub(super) fn interpreter_settings() -> impl Iterator<Item = PathBuf> {
    let pythons = (0..PYTHON_MINORS).map(|minor| format!("/etc/python3.{minor}"));
    let javas = JAVAS.map(|version| PathBuf::from(format!("/etc/java-{version}-openjdk")));
    let javas = javas.filter(|java| java.is_dir()).flat_map(|java| JAVA_SETTINGS.map(|below| java.join(below)));
    let pythons = std::iter::once("/etc/python3".to_owned()).chain(pythons).map(PathBuf::from);
    pythons.chain(javas).filter(|path| path.is_dir())
}

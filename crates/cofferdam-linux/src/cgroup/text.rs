//! Functions that write files of control groups.

use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};

pub(super) fn write(dir: BorrowedFd<'_>, name: &str, value: u64) -> io::Result<()> {
    write_text(dir, name, &value.to_string())
}

pub(super) fn write_text(dir: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    let file = openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    fs::File::from(file).write_all(value.as_bytes())
}

pub(super) fn write_if_present(dir: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    match write_text(dir, name, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

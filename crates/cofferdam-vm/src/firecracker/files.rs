//! Files in a machine's directory, which is all that a jailed Firecracker sees.
//!
//! It owns that directory, and so does whoever broke out into it: links there are never followed, and a file is made only
//! where there is none.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cofferdam_contract::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};

use super::ids::FileName;
use super::process::{Firecracker, os};

impl Firecracker {
    /// Shows it a file of the host's under another name, without copying it, and gives the path for requests. Both must
    /// be on one file system. Firecracker's user must be able to read the file; whether it can write is up to the file.
    pub fn link(&self, source: &Path, name: &FileName) -> Result<PathBuf> {
        let about = fs::symlink_metadata(source).map_err(|error| os("find a file for the machine", source, error))?;
        if !about.is_file() {
            return Err(Error::invalid("create", "only plain files can be given to a machine")
                .with_context("path", source.display().to_string()));
        }
        if !self.can_read(&about) {
            let message = "Firecracker's user cannot read a file for the machine";
            return Err(Error::new(ErrorKind::Denied, "create", message)
                .with_context("path", source.display().to_string())
                .with_remedy("let others read it: `chmod o+r FILE`"));
        }
        let target = self.view.outside.join(name);
        rustix::fs::linkat(CWD, source, CWD, &target, AtFlags::empty()).map_err(|error| {
            let failed = os("link a file into the machine's directory", source, error.into());
            match error {
                rustix::io::Errno::XDEV => failed.with_remedy("keep images and jails on one file system"),
                _ => failed,
            }
        })?;
        Ok(self.view.inside.join(name))
    }

    /// Makes an empty file that Firecracker can read and write and nobody else, and gives it with the path for requests.
    pub fn create(&self, name: &FileName) -> Result<(File, PathBuf)> {
        let path = self.view.outside.join(name);
        let made = make(&path, self.view.owner);
        let file = made.map_err(|error| os("make a file in the machine's directory", &path, error))?;
        Ok((file, self.view.inside.join(name)))
    }

    /// Opens a file that Firecracker wrote, for reading. Its content is as trustworthy as the guest.
    pub fn open(&self, name: &FileName) -> Result<File> {
        let path = self.view.outside.join(name);
        let failed = |error| os("open a file of the machine's", &path, error);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let file = File::from(file);
        if file.metadata().map_err(failed)?.is_file() {
            Ok(file)
        } else {
            Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")))
        }
    }

    /// Whether the user that Firecracker runs as may read a file, by the file's mode.
    fn can_read(&self, about: &fs::Metadata) -> bool {
        let Some((user, group)) = self.view.owner else { return true };
        let readable = if about.uid() == user {
            0o400
        } else if about.gid() == group {
            0o040
        } else {
            0o004
        };
        about.mode() & readable != 0
    }
}

fn make(path: &Path, owner: Option<(u32, u32)>) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    if let Some((user, group)) = owner {
        rustix::fs::fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(file.into())
}

//! Files in a VM's directory, which is all that a jailed Firecracker sees.
//!
//! The directory belongs to Firecracker, and so to a guest that took it over: links in it are never followed, and a
//! file is only created under an unused name.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cofferdam_contract::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};

use super::ids::FileName;
use super::process::{Firecracker, os};

impl Firecracker {
    /// Makes a host file visible under another name, without copying it, and returns the path for requests. Both must
    /// be on one file system. Firecracker's user must be able to read the file; its mode determines whether it can
    /// write.
    pub fn link(&self, source: &Path, name: &FileName) -> Result<PathBuf> {
        let about = fs::symlink_metadata(source).map_err(|error| os("find a file for the VM", source, error))?;
        if !about.is_file() {
            return Err(Error::invalid("create", "only regular files can be given to a VM")
                .with_context("path", source.display().to_string()));
        }
        if !self.can_read(&about) {
            let message = "Firecracker's user cannot read a file for the VM";
            return Err(Error::new(ErrorKind::Denied, "create", message)
                .with_context("path", source.display().to_string())
                .with_remedy("make it readable for that user: `chmod o+r FILE`"));
        }
        let target = self.view.outside.join(name);
        rustix::fs::linkat(CWD, source, CWD, &target, AtFlags::empty()).map_err(|error| {
            let failed = os("link a file into the VM's directory", source, error.into());
            match error {
                rustix::io::Errno::XDEV => failed.with_remedy("keep images and jails on one file system"),
                _ => failed,
            }
        })?;
        Ok(self.view.inside.join(name))
    }

    /// Creates an empty file that only Firecracker's user can read and write. Returns it with the path for requests.
    pub fn create(&self, name: &FileName) -> Result<(File, PathBuf)> {
        let path = self.view.outside.join(name);
        let made = create(&path, self.view.owner);
        let file = made.map_err(|error| os("create a file in the VM's directory", &path, error))?;
        Ok((file, self.view.inside.join(name)))
    }

    /// Opens a file that Firecracker wrote, for reading. Its content is as untrusted as the guest.
    pub fn open(&self, name: &FileName) -> Result<File> {
        let path = self.view.outside.join(name);
        let failed = |error| os("open a file of the VM", &path, error);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let file = File::from(file);
        if file.metadata().map_err(failed)?.is_file() {
            Ok(file)
        } else {
            Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")))
        }
    }

    /// Returns true if the file's mode lets Firecracker's user read it.
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

fn create(path: &Path, owner: Option<(u32, u32)>) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    if let Some((user, group)) = owner {
        rustix::fs::fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(file.into())
}

//! Atomic replacement of one file: by a temporary file in the same directory, which is renamed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use super::leftovers::random_name;
use super::{Application, lock};
use crate::bounds::MAX_NAME;
use crate::change::{Change, Node};
use crate::conflict::Cause;
use crate::error::{Result, io as io_error};
use crate::read::ChangeSet;
use crate::tree::{self, Spot};
use crate::{capture, layer};

/// Ending of the guest's version of a file that the host changed, too.
pub const NEW_SUFFIX: &str = ".cofferdam-new";
/// Ending of a directory of the host that cannot have its name back, since another process took the name.
const OLD_SUFFIX: &str = ".cofferdam-old";
/// Maximum number of versions that are kept beside one file.
const MAX_KEPT: usize = 1000;

/// A complete file without a name or with a temporary one, which is removed unless it gets its final one.
pub(crate) struct Temporary<'a> {
    parent: &'a OwnedFd,
    pub(super) name: OsString,
    /// The file. Its lock shows other processes that this one is alive. `None` for a link.
    file: Option<File>,
    /// True if the file was created without a name. A killed process then leaves nothing.
    is_nameless: bool,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // The report already has the reason why the file was not used.
            let _ = rustix::fs::unlinkat(self.parent, &self.name, AtFlags::empty());
        }
    }
}

impl Application<'_> {
    /// Writes the guest's version of a file or link to a temporary name.
    pub(super) fn temporary<'a>(
        &self,
        change: &Change,
        spot: &'a Spot,
        node: &Node,
        replaced: Option<&Stat>,
    ) -> Result<Temporary<'a>> {
        let create = || {
            let name = random_name()?;
            let mut temporary = Temporary { parent: &spot.parent, name, file: None, is_nameless: false };
            match node {
                Node::File { mode, .. } => {
                    let mut file = create_file(&mut temporary)?;
                    layer::copy(self.set.content(node), &mut file)?;
                    if let Some((user, group)) = self.new_owner(replaced) {
                        rustix::fs::fchown(&file, Some(user), Some(group))?;
                    }
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
                    file.sync_all()?;
                    temporary.file = Some(file);
                }
                Node::Symlink { target } => {
                    rustix::fs::symlinkat(target.as_os_str(), &spot.parent, &temporary.name)?;
                    self.chown_name(temporary.parent, &temporary.name, replaced)?;
                }
                Node::Directory { .. } => return Err(io::ErrorKind::IsADirectory.into()),
            }
            Ok(temporary)
        };
        create().map_err(io_error::<io::Error>("write", &change.path))
    }

    /// Sets the owner, if this process may.
    pub(super) fn chown_name(&self, parent: &OwnedFd, name: &OsStr, replaced: Option<&Stat>) -> io::Result<()> {
        let Some((user, group)) = self.new_owner(replaced) else { return Ok(()) };
        Ok(rustix::fs::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Returns the owner of a new file. `None` if this process cannot set one.
    fn new_owner(&self, replaced: Option<&Stat>) -> Option<(Uid, Gid)> {
        let like = replaced.unwrap_or(&self.owner);
        rustix::process::geteuid().is_root().then(|| (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid)))
    }
}

impl<'a> Temporary<'a> {
    /// Creates an empty file that only this user can access.
    pub(crate) fn create(parent: &'a OwnedFd) -> io::Result<Self> {
        let mut temporary = Self { parent, name: random_name()?, file: None, is_nameless: false };
        temporary.file = Some(create_file(&mut temporary)?);
        Ok(temporary)
    }

    /// Returns the file. `None` for a link.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }
}

impl Temporary<'_> {
    /// Gives the file its final name. Returns the conflict if another process was faster.
    pub(crate) fn rename(&self, spot: &Spot, replaces: bool, path: &Path) -> Result<Option<Cause>> {
        let renamed = if replaces {
            self.link().and_then(|()| rustix::fs::renameat(self.parent, &self.name, &spot.parent, &spot.name))
        } else {
            self.rename_new(&spot.name)
        };
        match renamed {
            Ok(()) => Ok(None),
            Err(Errno::EXIST) => Ok(Some(Cause::Appeared)),
            Err(Errno::ISDIR | Errno::NOTEMPTY) => Ok(Some(Cause::Changed)),
            Err(error) => Err(io_error("replace", path)(error)),
        }
    }

    /// Gives the file the name of a directory of the host, which gets the temporary name. Returns false if the file
    /// system cannot exchange them.
    pub(super) fn exchange(&self, spot: &Spot, path: &Path) -> Result<bool> {
        self.link().map_err(io_error("replace", path))?;
        exchange(self.parent, &self.name, &spot.name).map_err(io_error("replace", path))
    }

    /// Gives a file without a name its temporary name.
    fn link(&self) -> rustix::io::Result<()> {
        match &self.file {
            Some(file) if self.is_nameless => match link(file, self.parent, &self.name) {
                // An exchange that the file system does not have was tried before.
                Err(Errno::EXIST) => Ok(()),
                other => other,
            },
            _ => Ok(()),
        }
    }

    /// Renames the file to a name that no file has.
    fn rename_new(&self, name: &OsStr) -> rustix::io::Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| self.is_nameless) {
            return link(file, self.parent, name);
        }
        match rustix::fs::renameat_with(self.parent, &self.name, self.parent, name, RenameFlags::NOREPLACE) {
            // Some network file systems only have links.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(self.parent, &self.name, self.parent, name, AtFlags::empty())
            }
            other => other,
        }
    }

    /// Keeps the file beside that of the host, under a new name, and returns its path. A copy of an earlier attempt is
    /// used again.
    pub(super) fn keep_beside(&self, set: &ChangeSet, node: &Node, path: &Path) -> Result<Option<PathBuf>> {
        let name = path.file_name().unwrap_or_default();
        for number in 1..=MAX_KEPT {
            let beside = beside(name, NEW_SUFFIX, number);
            match self.rename_new(&beside) {
                Ok(()) => return Ok(Some(path.with_file_name(beside))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(io_error("keep both versions of", path)(error)),
            }
            let stat = tree::stat(self.parent.as_fd(), &beside).map_err(io_error("inspect", path))?;
            let spot = Spot { parent: self.parent.try_clone().map_err(io_error("open", path))?, name: beside };
            if stat.is_some_and(|stat| is_same(set, node, &spot, &stat).unwrap_or(false)) {
                return Ok(Some(path.with_file_name(&spot.name)));
            }
        }
        Ok(None)
    }
}

/// Returns true if the file of the host already is the guest's version.
pub(super) fn is_same(set: &ChangeSet, node: &Node, spot: &Spot, now: &Stat) -> io::Result<bool> {
    match (node, tree::kind(now)) {
        (Node::File { size, mode, .. }, FileType::RegularFile) => {
            if tree::size(now) != *size || now.st_mode & 0o7777 != *mode {
                return Ok(false);
            }
            match tree::open_file(spot.parent.as_fd(), &spot.name) {
                Ok(Some((file, _))) => capture::equal(file, set.content(node)),
                _ => Ok(false),
            }
        }
        (Node::Symlink { target }, FileType::Symlink) => Ok(tree::target(spot.parent.as_fd(), &spot.name)? == *target),
        (Node::Directory { mode }, FileType::Directory) => Ok(now.st_mode & 0o777 == mode & 0o777),
        _ => Ok(false),
    }
}

/// Creates a file without a name, or with its temporary one where the file system has no nameless files. Locks it.
fn create_file(temporary: &mut Temporary<'_>) -> io::Result<File> {
    let private = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(temporary.parent, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, private) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        opened => {
            let file = File::from(opened?);
            // On a file system without locks, no other process removes it either.
            let _ = lock::try_lock(&file);
            temporary.is_nameless = true;
            return Ok(file);
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let file = File::from(rustix::fs::openat(temporary.parent, &temporary.name, flags, private)?);
        // Another process may remove it as a leftover before it is locked.
        if lock::try_lock(&file) != Err(Errno::WOULDBLOCK) && rustix::fs::fstat(&file)?.st_nlink > 0 {
            return Ok(file);
        }
        temporary.name = random_name()?;
    }
}

/// Gives a file without a name one that no file has.
fn link(file: &File, parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), parent, name, AtFlags::SYMLINK_FOLLOW)
}

/// Exchanges two names of a directory in one step. Returns false if the file system cannot do this.
pub(super) fn exchange(parent: &OwnedFd, one: &OsStr, other: &OsStr) -> rustix::io::Result<bool> {
    match rustix::fs::renameat_with(parent, one, parent, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames a directory of the host from its temporary name back to its own. If another process took the name, the
/// directory gets a name beside it.
pub(super) fn put_back(parent: &OwnedFd, temporary: &OsStr, name: &OsStr) -> rustix::io::Result<()> {
    let names = std::iter::once(name.to_owned()).chain((1..=MAX_KEPT).map(|number| beside(name, OLD_SUFFIX, number)));
    for name in names {
        match rustix::fs::renameat_with(parent, temporary, parent, &name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
    Err(Errno::EXIST)
}

fn beside(name: &OsStr, suffix: &str, number: usize) -> OsString {
    let suffix = if number == 1 { suffix.to_owned() } else { format!("{suffix}-{number}") };
    let length = name.len().min(MAX_NAME - suffix.len());
    let mut beside = OsStr::from_bytes(&name.as_bytes()[..length]).to_owned();
    beside.push(suffix);
    beside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_long_ones_are_valid() {
        let long = OsString::from("x".repeat(255));
        assert_eq!(beside(OsStr::new("a"), NEW_SUFFIX, 1), "a.cofferdam-new");
        assert_eq!(beside(OsStr::new("a"), NEW_SUFFIX, 2), "a.cofferdam-new-2");
        assert_eq!(beside(&long, NEW_SUFFIX, MAX_KEPT).len(), 255);
    }
}

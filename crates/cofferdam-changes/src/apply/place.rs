//! Atomic replacement of one file: by a temporary file in the same directory, which is renamed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use super::Session;
use crate::bounds::MAX_NAME;
use crate::change::{Change, Node};
use crate::conflict::Cause;
use crate::error::{Result, io as io_error};
use crate::read::ChangeSet;
use crate::tree::{self, Spot};
use crate::{capture, layer};

/// Ending of the guest's version of a file that the host changed, too.
pub const NEW_SUFFIX: &str = ".cofferdam-new";
/// Beginning of the names of temporary files.
const TEMPORARY: &str = ".cofferdam-tmp-";
/// Maximum number of versions that are kept beside one file.
const MAX_KEPT: usize = 1000;

/// A complete file without a name or with a temporary one, which is removed unless it gets its final one.
pub(super) struct Temporary<'a> {
    parent: &'a OwnedFd,
    name: OsString,
    /// The file, while it has no name. A killed process then leaves nothing.
    nameless: Option<File>,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // The report already has the reason why the file was not used.
            let _ = rustix::fs::unlinkat(self.parent, &self.name, AtFlags::empty());
        }
    }
}

impl Session<'_> {
    /// Writes the guest's version of a file or link to a temporary name.
    pub(super) fn temporary<'a>(
        &self,
        change: &Change,
        spot: &'a Spot,
        node: &Node,
        replaced: Option<&Stat>,
    ) -> Result<Temporary<'a>> {
        let create = || {
            let mut temporary = Temporary { parent: &spot.parent, name: random_name()?, nameless: None };
            match node {
                Node::File { mode, .. } => {
                    let (mut file, is_nameless) = create_file(&temporary)?;
                    layer::copy(self.set.content(node), &mut file)?;
                    if let Some((user, group)) = self.new_owner(replaced) {
                        rustix::fs::fchown(&file, Some(user), Some(group))?;
                    }
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
                    file.sync_all()?;
                    temporary.nameless = is_nameless.then_some(file);
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

    /// Gives a new directory to the owner of the replaced file, or of the workspace.
    pub(super) fn give(&self, spot: &Spot, replaced: Option<&Stat>, path: &Path) -> Result<()> {
        self.chown_name(&spot.parent, &spot.name, replaced).map_err(io_error("set the owner of", path))
    }

    /// Sets the owner, if this process may.
    fn chown_name(&self, parent: &OwnedFd, name: &OsStr, replaced: Option<&Stat>) -> io::Result<()> {
        let Some((user, group)) = self.new_owner(replaced) else { return Ok(()) };
        Ok(rustix::fs::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Returns the owner of a new file. `None` if this process cannot set one.
    fn new_owner(&self, replaced: Option<&Stat>) -> Option<(Uid, Gid)> {
        let like = replaced.unwrap_or(&self.owner);
        rustix::process::geteuid().is_root().then(|| (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid)))
    }
}

impl Temporary<'_> {
    /// Gives the file its final name. Returns the conflict if another process was faster.
    pub(super) fn rename(&self, spot: &Spot, replaces: bool, path: &Path) -> Result<Option<Cause>> {
        let renamed = if replaces {
            let named = self.nameless.as_ref().map_or(Ok(()), |file| link(file, self.parent, &self.name));
            named.and_then(|()| rustix::fs::renameat(self.parent, &self.name, &spot.parent, &spot.name))
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

    /// Renames the file to a name that no file has.
    fn rename_new(&self, name: &OsStr) -> rustix::io::Result<()> {
        if let Some(file) = &self.nameless {
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
            let beside = beside(name, number);
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

/// Creates a file without a name, or with its temporary one where the file system has no nameless files. Returns true if
/// it has no name.
fn create_file(temporary: &Temporary<'_>) -> io::Result<(File, bool)> {
    let private = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(temporary.parent, ".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, private) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        opened => return Ok((File::from(opened?), true)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((File::from(rustix::fs::openat(temporary.parent, &temporary.name, flags, private)?), false))
}

/// Gives a file without a name one that no file has.
fn link(file: &File, parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), parent, name, AtFlags::SYMLINK_FOLLOW)
}

fn beside(name: &OsStr, number: usize) -> OsString {
    let suffix = if number == 1 { NEW_SUFFIX.to_owned() } else { format!("{NEW_SUFFIX}-{number}") };
    let length = name.len().min(MAX_NAME - suffix.len());
    let mut beside = OsStr::from_bytes(&name.as_bytes()[..length]).to_owned();
    beside.push(suffix);
    beside
}

fn random_name() -> io::Result<OsString> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{TEMPORARY}{}", cofferdam_util::hex::encode(bytes)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_long_ones_are_valid() {
        let long = OsString::from("x".repeat(255));
        assert_eq!(beside(OsStr::new("a"), 1), "a.cofferdam-new");
        assert_eq!(beside(OsStr::new("a"), 2), "a.cofferdam-new-2");
        assert_eq!(beside(&long, MAX_KEPT).len(), 255);
    }
}

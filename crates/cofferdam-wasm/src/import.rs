//! A directory of the host as a guest's workspace: a copy of it, made when the sandbox is, that can only be read.
//!
//! The copy is charged as everything else that is stored. What the directory becomes afterwards the guest does not see; and
//! nothing that a guest does can reach it.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam_contract::{DirectoryId, Error, ErrorKind, Result, Spec};
use cofferdam_linux::beneath;
use cofferdam_linux::named::{Directory, UntrustedLink};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use crate::fs::{Base, FsError, Ino, LastLink, MAX_NODES, OpenHow, SetTime, Tree};

const PIECE: usize = 64 << 10;
/// Directories within each other.
const MAX_DEPTH: usize = 128;

/// What the copies have for times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Those of the files.
    Kept,
    /// None, for what is to be the same each time.
    Made,
}

/// Opens the directory that is the workspace of a spec, if it is the one that the caller named.
///
/// # Errors
///
/// `PathEscape` for a path with a symbolic link in it, `NotFound` for a directory that is missing or another one.
pub(crate) fn open(spec: &Spec, path: &Path) -> Result<Directory> {
    let opened = Directory::open(path).map_err(|error| match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "create", format!("the workspace cannot be opened: {link}"))
            .with_context("path", path.display().to_string())
            .with_remedy(UntrustedLink::REMEDY),
        None => unreadable(path, &error),
    })?;
    let (device, inode) = opened.identity();
    spec.check_directory(path, DirectoryId { device, inode })?;
    Ok(opened)
}

/// Copies what is in a directory into the directory `workspace` of a tree. Files, directories and links; what is
/// neither is left out. A link is copied as it is: in the tree it leads where the tree lets it.
///
/// # Errors
///
/// `NotFound` or `InvalidInput` if the directory cannot be read whole; `ResourceExhausted` if it does not fit.
pub(crate) fn import(top: &Directory, tree: &mut Tree, workspace: Ino, times: Times) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = top.path();
    let mut waiting = vec![(PathBuf::new(), workspace)];
    while let Some((within, ino)) = waiting.pop() {
        let shown = path.join(&within);
        if within.components().count() > MAX_DEPTH {
            return Err(Error::invalid("create", "the workspace has directories too deep within each other")
                .with_context("directory", shown.display().to_string()));
        }
        let directory = beneath::open(top.as_fd(), &within, flags | OFlags::NOFOLLOW, Mode::empty());
        let directory = directory.map_err(|error| unreadable(&shown, &error))?;
        for name in names(&directory, &shown)? {
            let here = Here { directory: directory.as_fd(), path: &shown.join(&name), times };
            if let Some(child) = here.copy(&name, tree, ino)? {
                waiting.push((within.join(name), child));
            }
        }
    }
    Ok(())
}

/// The names in a directory, in the order of the alphabet, so that a listing is the same each time.
fn names(directory: &OwnedFd, shown: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(|error| unreadable(shown, &error.into()))? {
        let entry = entry.map_err(|error| unreadable(shown, &error.into()))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let text = std::str::from_utf8(name).map_err(|_| {
            Error::invalid("create", "a file of the workspace has a name that is not UTF-8")
                .with_context("file", shown.join(OsStr::from_bytes(name)).display().to_string())
                .with_remedy("rename it, or use a backend of level process")
        })?;
        if names.len() >= MAX_NODES {
            return Err(does_not_fit(FsError::TooManyFiles, shown));
        }
        names.push(text.to_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// One entry of a directory that is copied.
struct Here<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    times: Times,
}

impl Here<'_> {
    /// Copies one entry; gives what a directory is called in the tree.
    fn copy(&self, name: &str, tree: &mut Tree, parent: Ino) -> Result<Option<Ino>> {
        let base = Base { ino: parent, name: None };
        let failed = |error: FsError| does_not_fit(error, self.path);
        let stat = rustix::fs::statat(self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = match stat {
            // Gone since it was listed.
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other.map_err(|error| unreadable(self.path, &error.into()))?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let ino = tree.make_directory(base, name, self.time(&stat)).map_err(failed)?;
                Ok(Some(ino))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(self.directory, name, Vec::new());
                let target = target.map_err(|error| unreadable(self.path, &error.into()))?;
                // What is no text leads nowhere here.
                if let Ok(target) = target.to_str() {
                    tree.make_symlink(base, name, target, self.time(&stat)).map_err(failed)?;
                }
                Ok(None)
            }
            FileType::RegularFile => self.copy_file(name, tree, base).map(|()| None),
            _ => Ok(None),
        }
    }

    /// When it was changed last, in nanoseconds since 1970.
    fn time(&self, stat: &Stat) -> u64 {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
        match self.times {
            Times::Kept => seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec),
            Times::Made => 0,
        }
    }

    fn copy_file(&self, name: &str, tree: &mut Tree, base: Base<'_>) -> Result<()> {
        let unreadable = |error: &io::Error| unreadable(self.path, error);
        let failed = |error: FsError| does_not_fit(error, self.path);
        let Ok(file) = beneath::open_plain(self.directory, Path::new(name)).map_err(|error| unreadable(&error))? else {
            // It is something else by now.
            return Ok(());
        };
        let mut file = std::fs::File::from(file);
        let stat = rustix::fs::fstat(&file).map_err(|error| unreadable(&error.into()))?;
        let how = OpenHow { create: true, exclusive: true, writes: true, ..OpenHow::default() };
        let ino = tree.open(base, name, LastLink::Keep, how, self.time(&stat)).map_err(failed)?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            let read = file.read(&mut piece).map_err(|error| unreadable(&error))?;
            if read == 0 {
                break;
            }
            tree.write(ino, at, &piece[..read], self.time(&stat)).map_err(failed)?;
            at += read as u64;
        }
        let set = SetTime { accessed: Some(self.time(&stat)), modified: Some(self.time(&stat)) };
        tree.set_times(ino, set, self.time(&stat)).map_err(failed)
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    Error::new(kind, "create", format!("the workspace cannot be read: {error}"))
        .with_context("path", path.display().to_string())
}

fn does_not_fit(error: FsError, path: &Path) -> Error {
    match error {
        FsError::Full | FsError::NoMemory | FsError::TooManyFiles => {
            Error::new(ErrorKind::ResourceExhausted, "create", format!("the workspace does not fit: {error}"))
                .with_context("path", path.display().to_string())
                .with_remedy("its copy is kept in memory: raise --memory and --disk, lend a smaller directory, or use a backend of level process")
        }
        other => other.into_error("create", &path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;
    use crate::fs::ROOT;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    fn imported(path: &Path, limit: Option<u64>) -> Result<Tree> {
        let mut tree = Tree::new(limit, Arc::new(Account::new(None)));
        import(&open(&Spec::default(), path)?, &mut tree, ROOT, Times::Kept).map(|()| tree)
    }

    #[test]
    fn a_copy_has_files_directories_and_links_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("inside");
        std::fs::create_dir_all(inside.join("a/b")).unwrap();
        std::fs::write(inside.join("a/b/file"), vec![7; 200_000]).unwrap();
        std::fs::write(place.path().join("secret"), "x").unwrap();
        symlink("a/b/file", inside.join("link")).unwrap();
        symlink("../secret", inside.join("out")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, inside.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let tree = imported(&inside, None).unwrap();
        let top = Base { ino: ROOT, name: None };
        let file = tree.lookup(top, "link", LastLink::Follow).unwrap();
        let mut bytes = vec![0; 200_001];
        assert_eq!(tree.read(file, 0, &mut bytes).unwrap(), 200_000);
        assert!(bytes[..200_000].iter().all(|byte| *byte == 7));
        assert!(tree.lookup(top, "out", LastLink::Follow).is_err());
        assert_eq!(tree.lookup(top, "pipe", LastLink::Keep), Err(FsError::NotFound));
    }

    #[test]
    fn what_does_not_fit_or_cannot_be_read_is_refused() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), vec![7; 200_000]).unwrap();
        let error = imported(place.path(), Some(100_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(imported(&place.path().join("none"), None).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(imported(&place.path().join("file"), None).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(place.path().join(OsStr::from_bytes(b"\xff")), "x").unwrap();
        assert_eq!(imported(place.path(), None).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

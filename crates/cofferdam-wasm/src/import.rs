//! A host directory as a guest's workspace: a read-only copy of it, created with the sandbox.
//!
//! The copy is charged like all stored files. The guest does not see later changes of the directory, and cannot reach
//! the directory itself.

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
/// The maximum directory depth.
const MAX_DEPTH: usize = 128;

/// The timestamps of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// The timestamps of the originals.
    Preserved,
    /// Zero, for reproducible runs.
    Zeroed,
}

/// Opens a spec's workspace directory, and checks that it is the one that the caller named.
///
/// # Errors
///
/// `PathEscape` for a path with a symbolic link in it, `NotFound` for a directory that is missing or was replaced.
pub(crate) fn open(spec: &Spec, path: &Path) -> Result<Directory> {
    let opened = Directory::open(path).map_err(|error| match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "create", format!("cannot open the workspace: {link}"))
            .with_context("path", path.display().to_string())
            .with_remedy(UntrustedLink::REMEDY),
        None => unreadable(path, &error),
    })?;
    let (device, inode) = opened.identity();
    spec.check_directory(path, DirectoryId { device, inode })?;
    Ok(opened)
}

/// Copies the content of a directory into the directory `workspace` of a tree: files, directories and symlinks. Other
/// files are skipped. A symlink is copied unchanged and resolved within the tree.
///
/// # Errors
///
/// `NotFound` or `InvalidInput` if the directory cannot be read completely; `ResourceExhausted` if it exceeds the
/// limits.
pub(crate) fn import(top: &Directory, tree: &mut Tree, workspace: Ino, times: Times) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = top.path();
    let mut pending = vec![(PathBuf::new(), workspace)];
    while let Some((within, ino)) = pending.pop() {
        let shown = path.join(&within);
        if within.components().count() > MAX_DEPTH {
            return Err(Error::invalid("create", "directories of the workspace are nested too deeply")
                .with_context("directory", shown.display().to_string()));
        }
        let directory = beneath::open(top.as_fd(), &within, flags | OFlags::NOFOLLOW, Mode::empty());
        let directory = directory.map_err(|error| unreadable(&shown, &error))?;
        for name in names(&directory, &shown)? {
            let here = Here { directory: directory.as_fd(), path: &shown.join(&name), times };
            if let Some(child) = here.copy(&name, tree, ino)? {
                pending.push((within.join(name), child));
            }
        }
    }
    Ok(())
}

/// Returns the names in a directory, sorted, so that a listing is reproducible.
fn names(directory: &OwnedFd, shown: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(|error| unreadable(shown, &error.into()))? {
        let entry = entry.map_err(|error| unreadable(shown, &error.into()))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let text = std::str::from_utf8(name).map_err(|_| {
            Error::invalid("create", "the workspace has a file whose name is not UTF-8")
                .with_context("file", shown.join(OsStr::from_bytes(name)).display().to_string())
                .with_remedy("rename it, or use level process")
        })?;
        if names.len() >= MAX_NODES {
            return Err(does_not_fit(FsError::TooManyFiles, shown));
        }
        names.push(text.to_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// The directory whose entries are copied.
struct Here<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    times: Times,
}

impl Here<'_> {
    /// Copies one entry, and returns the inode of a directory in the tree.
    fn copy(&self, name: &str, tree: &mut Tree, parent: Ino) -> Result<Option<Ino>> {
        let base = Base { ino: parent, name: None };
        let failed = |error: FsError| does_not_fit(error, self.path);
        let stat = rustix::fs::statat(self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = match stat {
            // The entry was removed after it was listed.
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
                // A target that is not UTF-8 cannot be represented, so the link is skipped.
                if let Ok(target) = target.to_str() {
                    tree.make_symlink(base, name, target, self.time(&stat)).map_err(failed)?;
                }
                Ok(None)
            }
            FileType::RegularFile => self.copy_file(name, tree, base).map(|()| None),
            _ => Ok(None),
        }
    }

    /// Returns the modification time, in nanoseconds since 1970.
    fn time(&self, stat: &Stat) -> u64 {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
        match self.times {
            Times::Preserved => seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec),
            Times::Zeroed => 0,
        }
    }

    fn copy_file(&self, name: &str, tree: &mut Tree, base: Base<'_>) -> Result<()> {
        let unreadable = |error: &io::Error| unreadable(self.path, error);
        let failed = |error: FsError| does_not_fit(error, self.path);
        let Ok(file) = beneath::open_plain(self.directory, Path::new(name)).map_err(|error| unreadable(&error))? else {
            // The file was replaced by another kind of file.
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
    Error::new(kind, "create", format!("cannot read the workspace: {error}"))
        .with_context("path", path.display().to_string())
}

fn does_not_fit(error: FsError, path: &Path) -> Error {
    match error {
        FsError::Full | FsError::NoMemory | FsError::TooManyFiles => {
            Error::new(ErrorKind::ResourceExhausted, "create", format!("cannot copy the workspace: {error}"))
                .with_context("path", path.display().to_string())
                .with_remedy(
                    "its copy is stored in memory: raise --memory and --disk, mount a smaller directory, or use level \
                     process",
                )
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
        import(&open(&Spec::default(), path)?, &mut tree, ROOT, Times::Preserved).map(|()| tree)
    }

    /// Promise (WebAssembly): A mounted host directory is copied with its files, directories and links, and nothing
    /// else.
    #[test]
    fn a_copy_has_files_directories_and_links_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let inside = temporary.path().join("inside");
        std::fs::create_dir_all(inside.join("a/b")).unwrap();
        std::fs::write(inside.join("a/b/file"), vec![7; 200_000]).unwrap();
        std::fs::write(temporary.path().join("secret"), "x").unwrap();
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
    fn oversized_or_unreadable_imports_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), vec![7; 200_000]).unwrap();
        let error = imported(directory.path(), Some(100_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(imported(&directory.path().join("none"), None).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(imported(&directory.path().join("file"), None).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(directory.path().join(OsStr::from_bytes(b"\xff")), "x").unwrap();
        assert_eq!(imported(directory.path(), None).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

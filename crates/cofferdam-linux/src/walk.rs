//! Traversal of a tree of files that other processes may change meanwhile.
//!
//! Every directory and file is opened beneath its parent directory by a single name that is not a link, so that a
//! change of the tree cannot lead the traversal elsewhere. Links are not followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

/// The maximum depth, more than any root file system has.
const MAX_DEPTH: usize = 256;
/// The maximum of entries, more than any image needs.
const MAX_ENTRIES: usize = 4_000_000;

/// The file at a name.
#[derive(Debug)]
pub enum Entry {
    /// A directory. Its contents follow.
    Directory,
    /// A plain file, open for reading, and its length when it was opened.
    File(File, u64),
    /// A symbolic link, and its target.
    Link(OsString),
    /// A socket, a fifo or a device, which was not opened.
    Other,
    /// A file or directory that this process may not read, and the error.
    Unreadable(io::Error),
}

/// Visits everything beneath `root` in the order of names. A directory precedes its contents.
///
/// # Errors
///
/// Those of `visit` and of the operating system, each with the path; and one for a tree that is too deep or too large.
pub fn walk(root: impl AsFd, visit: &mut dyn FnMut(&Path, &Stat, Entry) -> io::Result<()>) -> io::Result<()> {
    Walk { visit, entries: 0 }.directory(root.as_fd(), Path::new(""), 0)
}

struct Walk<'a> {
    visit: &'a mut dyn FnMut(&Path, &Stat, Entry) -> io::Result<()>,
    entries: usize,
}

impl Walk<'_> {
    fn directory(&mut self, directory: BorrowedFd<'_>, path: &Path, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("{}: more than {MAX_DEPTH} directories deep", path.display())));
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
            if self.entries + names.len() > MAX_ENTRIES {
                return Err(io::Error::other(format!("more than {MAX_ENTRIES} files")));
            }
        }
        self.entries += names.len();
        names.sort();
        for name in names {
            let name = OsStr::from_bytes(&name);
            let path = path.join(name);
            self.entry(directory, name, &path, depth)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }

    fn entry(&mut self, above: BorrowedFd<'_>, name: &OsStr, path: &Path, depth: usize) -> io::Result<()> {
        let stat = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = match open(above, name, OFlags::DIRECTORY) {
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return (self.visit)(path, &stat, Entry::Unreadable(error));
                    }
                    opened => opened?,
                };
                (self.visit)(path, &rustix::fs::fstat(&directory)?, Entry::Directory)?;
                self.directory(directory.as_fd(), path, depth + 1)
            }
            FileType::RegularFile => {
                let file = match open(above, name, OFlags::NONBLOCK | OFlags::NOCTTY) {
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return (self.visit)(path, &stat, Entry::Unreadable(error));
                    }
                    opened => opened?,
                };
                let stat = rustix::fs::fstat(&file)?;
                let entry = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => Entry::File(file.into(), u64::try_from(stat.st_size).unwrap_or(0)),
                    _ => Entry::Other,
                };
                (self.visit)(path, &stat, entry)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(above, name, Vec::new())?;
                (self.visit)(path, &stat, Entry::Link(OsString::from_vec(target.into_bytes())))
            }
            _ => (self.visit)(path, &stat, Entry::Other),
        }
    }
}

fn open(above: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Returns kinds by path, with the contents of files and targets of links.
    fn all(root: &Path) -> io::Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        walk(File::open(root)?, &mut |path, _, entry| {
            let text = match entry {
                Entry::Directory => "directory".to_owned(),
                Entry::File(mut file, _) => {
                    let mut text = String::new();
                    file.read_to_string(&mut text)?;
                    format!("file {text}")
                }
                Entry::Link(target) => format!("link {}", target.display()),
                Entry::Other => "other".to_owned(),
                Entry::Unreadable(error) => return Err(error),
            };
            found.insert(path.display().to_string(), text);
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn everything_is_visited_and_no_link_is_followed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/f"), "x").unwrap();
        symlink("d", root.join("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let found = all(root).unwrap();
        let expected = [("d", "directory"), ("d/f", "file x"), ("fifo", "other"), ("link", "link d")];
        assert_eq!(found, expected.map(|(path, what)| (path.to_owned(), what.to_owned())).into());
    }

    #[test]
    fn a_directory_that_becomes_a_link_during_the_walk_leads_nowhere_else() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
        for directory in [root.join("sub"), outside.clone()] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(outside.join("secret"), "secret").unwrap();
        symlink(&outside, root.join("away")).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let (one, other) = (root.join("sub"), root.join("away"));
                while !done.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, exchange).unwrap();
                }
            });
            for _ in 0..2000 {
                // A traversal that meets a change may fail, but never leaves the tree.
                let found = all(&root).unwrap_or_default();
                assert!(found.keys().all(|path| !path.contains("secret")), "{found:?}");
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

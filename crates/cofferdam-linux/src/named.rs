//! Directories and files of the host, opened by a path that a caller named.
//!
//! A guest that may write to a directory can replace anything in it by a symbolic link at any time. Such a link has the
//! same owner as one that the caller created, so its owner proves nothing. For that reason no link is followed, except
//! in a place that no sandbox writes to: a link of root in `/`, or in a directory directly below it, that only root can
//! change (`/home` or `/var/run` on some hosts). Each component is opened beneath the previous one, so that nothing can
//! be replaced between a check and its use.
//!
//! The module does not decide whether a file is trusted. It only ensures that the path leads where it seems to.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath;

/// The maximum of links that are followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The maximum depth below `/` of a link of the system.
const MAX_SYSTEM_DEPTH: usize = 2;
const OPEN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A symbolic link that is not followed.
#[derive(Debug)]
pub struct UntrustedLink(PathBuf);

impl UntrustedLink {
    /// The remedy.
    pub const REMEDY: &str = "name the path that it leads to (`realpath PATH` prints it), if you trust that";

    /// Returns the link that an error is about, if it is one of [`open`]'s refusals.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    fn error(at: &Path) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, Self(at.to_owned()))
    }
}

impl fmt::Display for UntrustedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is a symbolic link that code in a sandbox could have put there", self.0.display())
    }
}

impl std::error::Error for UntrustedLink {}

/// A file of the host of any kind. It stays the file that was opened, even if its path changes.
#[derive(Debug)]
pub struct NamedPath {
    fd: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

impl NamedPath {
    /// Opens the file that a caller named as a path descriptor (`O_PATH`). It is never a link.
    ///
    /// # Errors
    ///
    /// An [`UntrustedLink`], and those of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open(path)?;
        let stat = rustix::fs::fstat(&fd)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        Ok(Self { fd, path, stat })
    }

    /// Returns its path without any link, as it was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its properties, as they were when it was opened.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.stat
    }
}

impl From<NamedPath> for OwnedFd {
    fn from(file: NamedPath) -> Self {
        file.fd
    }
}

/// A directory of the host. It stays the directory that was opened, even if its path changes.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

impl Directory {
    /// Opens the directory that a caller named, for reading.
    ///
    /// # Errors
    ///
    /// An [`UntrustedLink`], [`io::ErrorKind::NotADirectory`], and those of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let found = open(path)?;
        let stat = rustix::fs::fstat(&found)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let fd = rustix::fs::openat(&found, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Self::opened(fd, stat)
    }

    fn opened(fd: OwnedFd, stat: Stat) -> io::Result<Self> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        Ok(Self { fd, path, stat })
    }

    /// Returns another handle of the same directory.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn try_clone(&self) -> io::Result<Self> {
        Self::opened(self.fd.try_clone()?, self.stat)
    }

    /// Returns its path without any link, as it was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its device and inode.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// Returns its user and group.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Directory> for OwnedFd {
    fn from(directory: Directory) -> Self {
        directory.fd
    }
}

/// Opens a file or directory that a caller named, for reading. A device or a fifo is refused before it is opened.
///
/// # Errors
///
/// An [`UntrustedLink`], [`io::ErrorKind::InvalidInput`] for a device, a fifo or a socket, and those of the operating
/// system.
pub fn read(path: &Path) -> io::Result<File> {
    let found = open(path)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::RegularFile | FileType::Directory => beneath::reopen(&found, OFlags::RDONLY).map(File::from),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a directory nor a plain file")),
    }
}

/// Opens a file or directory that a caller named as a path descriptor (`O_PATH`). It is never a link.
///
/// # Errors
///
/// An [`UntrustedLink`], and those of the operating system.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let mut walk = Walk::new(path)?;
    while let Some(name) = walk.names.pop_front() {
        walk.step(&name)?;
    }
    Ok(walk.at)
}

/// A path that is being opened, one name after the other.
struct Walk {
    at: OwnedFd,
    /// The path so far, for messages.
    shown: PathBuf,
    /// The depth below `/`. `None` if the path began elsewhere.
    depth: Option<usize>,
    names: VecDeque<OsString>,
    links: usize,
}

impl Walk {
    fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        let (start, depth) = if path.is_absolute() { ("/", Some(0)) } else { (".", None) };
        let at = rustix::fs::openat(CWD, start, OPEN | OFlags::DIRECTORY, Mode::empty())?;
        let shown = if path.is_absolute() { PathBuf::from("/") } else { PathBuf::new() };
        Ok(Self { at, shown, depth, names: names(path), links: 0 })
    }

    fn step(&mut self, name: &OsStr) -> io::Result<()> {
        let next = rustix::fs::openat(&self.at, name, OPEN, Mode::empty())?;
        let stat = rustix::fs::fstat(&next)?;
        if FileType::from_raw_mode(stat.st_mode).is_symlink() {
            return self.follow(name, &next, &stat);
        }
        if name == ".." {
            self.shown.pop();
            self.depth = self.depth.map(|depth| depth.saturating_sub(1));
        } else {
            self.shown.push(name);
            self.depth = self.depth.map(|depth| depth + 1);
        }
        self.at = next;
        Ok(())
    }

    fn follow(&mut self, name: &OsStr, link: &OwnedFd, stat: &Stat) -> io::Result<()> {
        let near_the_root = self.depth.is_some_and(|depth| depth < MAX_SYSTEM_DEPTH);
        if !near_the_root || stat.st_uid != 0 || !only_root_changes(&rustix::fs::fstat(&self.at)?) {
            return Err(UntrustedLink::error(&self.shown.join(name)));
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            let rest = std::mem::take(&mut self.names);
            let links = self.links;
            *self = Self { links, ..Self::new(target)? };
            self.names.extend(rest);
        } else {
            for name in names(target).into_iter().rev() {
                self.names.push_front(name);
            }
        }
        Ok(())
    }
}

fn only_root_changes(directory: &Stat) -> bool {
    directory.st_uid == 0 && directory.st_mode & 0o022 == 0
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Creates a directory for tests, with a path without links.
    fn test_directory() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().canonicalize().unwrap();
        (temp, path)
    }

    #[test]
    fn a_named_path_is_opened_and_its_links_are_refused_by_name() {
        let (_temp, top) = test_directory();
        std::fs::create_dir_all(top.join("real/sub")).unwrap();
        std::fs::write(top.join("real/file"), "text").unwrap();
        symlink("real", top.join("link")).unwrap();
        symlink(top.join("real/file"), top.join("real/alias")).unwrap();
        let sub = Directory::open(&top.join("real/./sub/../sub")).unwrap();
        assert_eq!(sub.path(), top.join("real/sub"));
        for (name, refused) in [("link", "link"), ("link/sub", "link"), ("real/alias", "real/alias")] {
            let error = open(&top.join(name)).unwrap_err();
            let link = UntrustedLink::of(&error).unwrap_or_else(|| panic!("{name}: {error}"));
            assert!(link.to_string().contains(&top.join(refused).display().to_string()), "{link}");
        }
        assert!(read(&top.join("real/file")).is_ok());
        assert_eq!(Directory::open(&top.join("real/file")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        for missing in ["missing", "real/file/x"] {
            let error = open(&top.join(missing)).unwrap_err();
            assert!(UntrustedLink::of(&error).is_none() && error.raw_os_error().is_some(), "{error}");
        }
        assert!(open(Path::new("")).is_err());
    }

    #[test]
    fn an_open_directory_stays_the_same_when_its_name_leads_elsewhere() {
        let (_temp, top) = test_directory();
        std::fs::create_dir_all(top.join("named")).unwrap();
        std::fs::create_dir_all(top.join("other")).unwrap();
        let named = Directory::open(&top.join("named")).unwrap();
        std::fs::rename(top.join("named"), top.join("aside")).unwrap();
        std::fs::rename(top.join("other"), top.join("named")).unwrap();
        let other = Directory::open(&top.join("named")).unwrap();
        assert_ne!(named.identity(), other.identity());
        assert_eq!(named.identity(), Directory::open(&top.join("aside")).unwrap().identity());
    }

    #[test]
    fn links_of_the_system_are_followed() {
        // All directories of the system that are links here: on most hosts `/bin`, `/lib` and `/var/run`.
        let links = ["/bin", "/sbin", "/lib", "/var/run", "/var/lock"].map(Path::new);
        let links = links.into_iter().filter(|path| {
            path.symlink_metadata().is_ok_and(|found| {
                use std::os::unix::fs::MetadataExt;
                found.is_symlink() && found.uid() == 0
            })
        });
        for link in links.filter(|link| link.is_dir()) {
            let opened = Directory::open(link).unwrap_or_else(|error| panic!("{}: {error}", link.display()));
            assert_eq!(opened.path(), link.canonicalize().unwrap());
        }
        // A process chooses the targets of links in /proc.
        assert!(open(Path::new("/proc/self/cwd")).is_err());
    }

    #[test]
    fn a_device_or_a_fifo_is_refused_before_it_is_opened() {
        let (_temp, top) = test_directory();
        rustix::fs::mknodat(CWD, top.join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [top.join("fifo"), PathBuf::from("/dev/zero")] {
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
    }
}

//! Access to files below a directory that hostile code may change: by `openat2`, never by comparing paths as strings.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The number of attempts to look up a path while other processes rename its parts.
const RACE_TRIES: usize = 128;

/// Opens `path` below `dir`. No step leaves `dir`: neither by `..` nor by symlinks or magic links. An empty path opens
/// `dir` itself. An escape returns `EXDEV`.
pub fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    resolve(dir, path, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

/// Opens the directory at `path` below `dir` for reading. No link is followed, not even inside: it returns
/// `ELOOP`.
pub fn open_directory(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY;
    resolve(dir, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn resolve(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    for _ in 0..RACE_TRIES {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    Err(io::Error::from(Errno::AGAIN))
}

/// Opens a plain file below `dir` for reading. Checks the type before it opens the file, so that a fifo never blocks
/// and a device is never touched. Returns the type of any other file.
pub fn open_plain(dir: BorrowedFd<'_>, path: &Path) -> io::Result<Result<OwnedFd, FileType>> {
    let handle = open(dir, path, OFlags::PATH, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
    if kind != FileType::RegularFile {
        return Ok(Err(kind));
    }
    reopen(&handle, OFlags::RDONLY).map(Ok)
}

/// Opens the file of a path descriptor again, with other flags.
pub fn reopen(handle: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let name = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::open(name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_opens() {
        let temp = tempfile::tempdir().unwrap();
        let inside = temp.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(temp.path().join("secret"), "x").unwrap();
        std::fs::write(inside.join("plain"), "y").unwrap();
        symlink("../secret", inside.join("relative")).unwrap();
        symlink(temp.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("/proc/self/root/etc/passwd", inside.join("magic")).unwrap();
        symlink("plain", inside.join("fine")).unwrap();
        let dir = OwnedFd::from(std::fs::File::open(&inside).unwrap());
        for name in ["relative", "absolute", "magic", "../secret"] {
            let error = open_plain(dir.as_fd(), Path::new(name)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{name}");
        }
        assert!(open_plain(dir.as_fd(), Path::new("fine")).unwrap().is_ok());
        assert_eq!(open_plain(dir.as_fd(), Path::new("")).unwrap().unwrap_err(), FileType::Directory);
    }

    /// Promise (Files): The search beneath a directory reports a named pipe and does not open it.
    #[test]
    fn a_fifo_is_reported_and_not_opened() {
        let temp = tempfile::tempdir().unwrap();
        let dir = OwnedFd::from(std::fs::File::open(temp.path()).unwrap());
        rustix::fs::mknodat(&dir, "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(open_plain(dir.as_fd(), Path::new("fifo")).unwrap().unwrap_err(), FileType::Fifo);
    }
}

//! The directory of a user's server, which only that user can enter, with a lock and a socket in it.
//!
//! The directory is opened once and checked through its descriptor, and everything in it is accessed through that
//! descriptor. So the checked directory is the one that is used, even if the path changes. The lock names the
//! server that owns the socket. Without a held lock, the socket is stale.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use cofferdam_contract::Result;
use cofferdam_linux::trust::{self, Secrecy};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error;
use crate::peer::Peer;

/// The directory's name below a runtime directory.
const DIRECTORY: &str = "cofferdam";
const SOCKET: &str = "server.sock";
const LOCK: &str = "server.lock";
/// Number of attempts to lock a file that was removed in the meantime.
const TRIES: usize = 16;

/// Candidate locations of the directory, from the environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Candidates {
    /// `XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    /// `TMPDIR`.
    pub temporary: Option<PathBuf>,
}

impl Candidates {
    /// Reads the candidates from environment variables.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { runtime: path("XDG_RUNTIME_DIR"), temporary: path("TMPDIR") }
    }

    /// Returns the directory: below the runtime directory if this user owns it, else below `/run/user/UID` if this user
    /// owns that, else a private one below the temporary directory.
    pub fn directory(&self) -> PathBuf {
        let uid = rustix::process::geteuid();
        let named = self.runtime.clone().filter(|path| path.is_absolute() && is_ours(path));
        let usual = || Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|path| is_ours(path));
        match named.or_else(usual) {
            Some(base) => base.join(DIRECTORY),
            None => {
                let temporary = self.temporary.clone().filter(|path| path.is_absolute());
                temporary.unwrap_or_else(|| "/tmp".into()).join(format!("{DIRECTORY}-{uid}"))
            }
        }
    }

    /// Returns the path where the socket is if it exists.
    pub fn socket(&self) -> PathBuf {
        self.directory().join(SOCKET)
    }
}

/// Returns true if this user owns the directory. A runtime directory of another user, as `sudo` may leave it in the
/// environment, does not count.
fn is_ours(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw())
}

/// A directory that only its user can enter.
#[derive(Debug)]
pub struct SocketDirectory {
    path: PathBuf,
    fd: OwnedFd,
}

impl SocketDirectory {
    /// Opens the directory. Returns `None` if it does not exist. Refuses one that another user owns or can enter.
    pub fn open(path: PathBuf) -> Result<Option<Self>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(error::unsafe_directory(&path, "is a symbolic link or not a directory"));
            }
            Err(errno) => return Err(error::os("cannot open the server's directory", errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| error::os("cannot inspect the directory", errno))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(error::unsafe_directory(&path, "belongs to another user"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(error::unsafe_directory(&path, "can be entered by other users"));
        }
        // Other users could replace the directory.
        trust::check(&path, Secrecy::Secret).map_err(|distrust| {
            error::unsafe_directory(&path, &format!("is not trusted: {distrust} ({})", distrust.remedy()))
        })?;
        Ok(Some(Self { path, fd }))
    }

    /// Creates the directory if it does not exist, and opens it.
    pub fn make(path: PathBuf) -> Result<Self> {
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(error::os("cannot create the server's directory", errno)
                    .with_context("path", path.display().to_string()));
            }
        }
        Self::open(path.clone())?.ok_or_else(|| error::unsafe_directory(&path, "was removed in the meantime"))
    }

    /// Returns the socket's path, for display.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Returns a path for a file in the directory that stays valid if the directory's path changes, and that is short
    /// enough for a socket.
    fn inside(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd())
    }

    /// Connects to the server and identifies its process, which must hold the lock. Returns `None` if no server
    /// listens.
    pub(crate) fn connect(&self) -> Result<Option<(UnixStream, Peer)>> {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        match UnixStream::connect(self.inside(SOCKET)) {
            Ok(stream) => {
                let peer = Peer::of(&stream)?;
                if self.locked_by() != Some(peer.pid()) {
                    return Err(error::unsafe_directory(
                        &self.path,
                        "contains the socket of a process that does not hold the lock",
                    ));
                }
                Ok(Some((stream, peer)))
            }
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
            Err(error) => Err(error::os("cannot connect to the server", error)),
        }
    }

    /// Returns the process id in the lock file, if the lock is held.
    fn locked_by(&self) -> Option<u32> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.fd, LOCK, flags, Mode::empty()).ok()?);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => holder(&mut file),
            _ => None,
        }
    }

    /// Returns true if a server holds the lock.
    pub fn is_taken(&self) -> bool {
        let file = rustix::fs::openat(&self.fd, LOCK, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        file.is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
    }

    /// Creates the directory if it does not exist, claims it for this process, and listens.
    ///
    /// # Errors
    /// `Conflict` if another server is running, `Denied` if the directory is not safe.
    pub fn claim(path: &Path) -> Result<Claimed> {
        for _ in 0..TRIES {
            if let Some(claimed) = Self::make(path.to_owned())?.listen()? {
                return Ok(claimed);
            }
        }
        Err(error::unsafe_directory(path, "is removed repeatedly"))
    }

    /// Returns `None` if the directory was removed in the meantime, by a server that ended.
    fn listen(self) -> Result<Option<Claimed>> {
        let Some(lock) = self.lock()? else { return Ok(None) };
        let _ = rustix::fs::unlinkat(&self.fd, SOCKET, AtFlags::empty());
        let listener = UnixListener::bind(self.inside(SOCKET)).map_err(|error| error::os("cannot listen", error))?;
        // Other users cannot enter the directory. The mode is for tools that inspect the socket.
        rustix::fs::chmodat(&self.fd, SOCKET, Mode::RUSR | Mode::WUSR, AtFlags::empty())
            .map_err(|errno| error::os("cannot protect the socket", errno))?;
        Ok(Some(Claimed { directory: self, listener: Some(listener), _lock: lock }))
    }

    fn lock(&self) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let mut file = match rustix::fs::openat(&self.fd, LOCK, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => File::from(file),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(error::os("cannot open the lock", errno)),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(error::runs_already(holder(&mut file))),
                Err(errno) => return Err(error::os("cannot lock", errno)),
            }
            // A server that ended in the meantime may have removed the locked file.
            let named = rustix::fs::statat(&self.fd, LOCK, AtFlags::SYMLINK_NOFOLLOW);
            let locked = rustix::fs::fstat(&file).map_err(|errno| error::os("cannot inspect the lock", errno))?;
            if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)) {
                sign(&mut file).map_err(|error| error::os("cannot write to the lock", error))?;
                return Ok(Some(file));
            }
        }
        Err(error::runs_already(None))
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn sign(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// A directory that this process serves as its server. Dropping it removes the socket, the lock and the directory.
#[derive(Debug)]
pub struct Claimed {
    directory: SocketDirectory,
    listener: Option<UnixListener>,
    _lock: File,
}

impl Claimed {
    /// Takes the listener, once.
    pub(crate) fn listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    /// Removes the socket, so that no new client finds it.
    pub(crate) fn hide(&self) {
        let _ = rustix::fs::unlinkat(&self.directory.fd, SOCKET, AtFlags::empty());
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.hide();
        // Remove the file while it is locked: a process that locks it later sees that it has no name.
        let _ = rustix::fs::unlinkat(&self.directory.fd, LOCK, AtFlags::empty());
        // Fails if the directory has other files, which this process must not remove.
        let _ = rustix::fs::rmdir(&self.directory.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Promise (Server): A socket directory with access for other users is refused.
    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cofferdam");
        assert!(SocketDirectory::open(path.clone()).unwrap().is_none());
        SocketDirectory::make(path.clone()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(SocketDirectory::make(path.clone()).unwrap_err().message().contains("entered by other users"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(SocketDirectory::open(link).is_err());
    }

    /// Promise (Server): A server removes its socket directory at its end, and replaces that of a killed server.
    #[test]
    fn second_server_is_refused_and_directory_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cofferdam");
        let directory = || SocketDirectory::make(path.clone()).unwrap();
        let first = SocketDirectory::claim(&path).unwrap();
        assert!(directory().is_taken() && directory().connect().unwrap().is_some());
        let error = SocketDirectory::claim(&path).unwrap_err();
        assert!(error.message().contains(&std::process::id().to_string()), "{error}");
        let removed = directory();
        drop(first);
        assert!(!path.exists() && removed.listen().unwrap().is_none());
        // A stale socket, as a killed server leaves it, is replaced.
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        drop(UnixListener::bind(path.join(SOCKET)).unwrap());
        assert!(directory().connect().unwrap().is_none() && !directory().is_taken());
        let again = SocketDirectory::claim(&path).unwrap();
        assert!(directory().connect().unwrap().is_some());
        drop(again);
    }

    /// Promise (Server): The runtime directory must belong to the user.
    #[test]
    fn a_runtime_directory_must_be_ours() {
        let base = tempfile::tempdir().unwrap();
        let named = |path: &Path| Candidates { runtime: Some(path.to_owned()), temporary: None }.directory();
        assert_eq!(named(base.path()), base.path().join("cofferdam"));
        assert_ne!(named(Path::new("relative")), Path::new("relative/cofferdam"));
        assert_ne!(named(&base.path().join("missing")), base.path().join("missing/cofferdam"));
    }
}

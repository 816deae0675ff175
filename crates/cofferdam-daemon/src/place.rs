//! Where a user's daemon listens: a directory that nobody else can enter, with a lock and a socket in it.
//!
//! The directory is opened once, looked at through its descriptor, and everything in it is named through that descriptor;
//! so what was checked is what is used, whatever becomes of the path. The lock says which daemon owns the socket: a socket
//! without a locked lock is stale.

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
const SOCKET: &str = "daemon.sock";
const LOCK: &str = "daemon.lock";
/// How often a lock is tried whose file was removed meanwhile.
const TRIES: usize = 16;

/// Where a directory for a daemon may be looked for, as the environment says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Candidates {
    /// `XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    /// `TMPDIR`.
    pub temporary: Option<PathBuf>,
}

impl Candidates {
    /// The directory: below the runtime directory if that is ours, else below `/run/user/UID` if that is, else one of our
    /// own below the temporary directory.
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

    /// Where the socket is, if there is one.
    pub fn socket(&self) -> PathBuf {
        self.directory().join(SOCKET)
    }
}

/// A runtime directory of somebody else, as `sudo` may leave it in the environment, does not count.
fn is_ours(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw())
}

/// A directory that nobody but its user can enter.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    directory: OwnedFd,
}

impl Place {
    /// Opens the directory; `None` if there is none. One that others own or can enter is refused.
    pub fn open(path: PathBuf) -> Result<Option<Self>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(error::unsafe_place(&path, "is a link, or no directory")),
            Err(errno) => return Err(error::os("cannot open the daemon's directory", errno)),
        };
        let stat = rustix::fs::fstat(&directory).map_err(|errno| error::os("cannot look at the directory", errno))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(error::unsafe_place(&path, "belongs to somebody else"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(error::unsafe_place(&path, "can be entered by others"));
        }
        // Others could put another directory in its place.
        trust::check(&path, Secrecy::Secret).map_err(|distrust| {
            error::unsafe_place(&path, &format!("is not trusted: {distrust} ({})", distrust.remedy()))
        })?;
        Ok(Some(Self { path, directory }))
    }

    /// Makes the directory if there is none, and opens it.
    pub fn make(path: PathBuf) -> Result<Self> {
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(error::os("cannot make the daemon's directory", errno)
                    .with_context("path", path.display().to_string()));
            }
        }
        Self::open(path.clone())?.ok_or_else(|| error::unsafe_place(&path, "was removed just now"))
    }

    /// The socket's path, for people.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// A name for something in the directory that leads there whatever becomes of the path, and that is short enough
    /// for a socket.
    fn inside(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd())
    }

    /// Connects to the daemon; `None` if none listens. Returns its process, too, which must be the one that holds the lock.
    pub(crate) fn connect(&self) -> Result<Option<(UnixStream, Peer)>> {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        match UnixStream::connect(self.inside(SOCKET)) {
            Ok(stream) => {
                let peer = Peer::of(&stream)?;
                if self.locked_by() != Some(peer.pid()) {
                    return Err(error::unsafe_place(&self.path, "has a socket of a process that is not its daemon"));
                }
                Ok(Some((stream, peer)))
            }
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(None),
            Err(error) => Err(error::os("cannot connect to the daemon", error)),
        }
    }

    /// Returns the process that says that it holds the lock, if it is held.
    fn locked_by(&self) -> Option<u32> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.directory, LOCK, flags, Mode::empty()).ok()?);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => holder(&mut file),
            _ => None,
        }
    }

    /// Whether a daemon holds the lock.
    pub fn is_taken(&self) -> bool {
        let file = rustix::fs::openat(&self.directory, LOCK, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        file.is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
    }

    /// Makes the directory if there is none, becomes its one daemon, and listens.
    pub(crate) fn claim(path: &Path) -> Result<Claimed> {
        for _ in 0..TRIES {
            if let Some(claimed) = Self::make(path.to_owned())?.listen()? {
                return Ok(claimed);
            }
        }
        Err(error::unsafe_place(path, "is removed again and again"))
    }

    /// `None` where the directory was removed just now, by a daemon that ended.
    fn listen(self) -> Result<Option<Claimed>> {
        let Some(lock) = self.lock()? else { return Ok(None) };
        let _ = rustix::fs::unlinkat(&self.directory, SOCKET, AtFlags::empty());
        let listener = UnixListener::bind(self.inside(SOCKET)).map_err(|error| error::os("cannot listen", error))?;
        // Nobody else can enter the directory; this is for those who look.
        rustix::fs::chmodat(&self.directory, SOCKET, Mode::RUSR | Mode::WUSR, AtFlags::empty())
            .map_err(|errno| error::os("cannot protect the socket", errno))?;
        Ok(Some(Claimed { place: self, listener: Some(listener), _lock: lock }))
    }

    fn lock(&self) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let mut file = match rustix::fs::openat(&self.directory, LOCK, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => File::from(file),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(error::os("cannot open the lock", errno)),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(error::runs_already(holder(&mut file))),
                Err(errno) => return Err(error::os("cannot lock", errno)),
            }
            // One that ended just now may have removed the file that we locked.
            let named = rustix::fs::statat(&self.directory, LOCK, AtFlags::SYMLINK_NOFOLLOW);
            let locked = rustix::fs::fstat(&file).map_err(|errno| error::os("cannot look at the lock", errno))?;
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

/// A place whose daemon we are. Dropping it takes socket, lock and directory away.
#[derive(Debug)]
pub(crate) struct Claimed {
    place: Place,
    listener: Option<UnixListener>,
    _lock: File,
}

impl Claimed {
    /// The listener; it can be taken once.
    pub(crate) fn listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.place.socket()
    }

    /// Takes the socket away, so that nobody new finds it.
    pub(crate) fn hide(&self) {
        let _ = rustix::fs::unlinkat(&self.place.directory, SOCKET, AtFlags::empty());
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.hide();
        // While it is locked still: who locks the removed file afterwards sees that it has no name.
        let _ = rustix::fs::unlinkat(&self.place.directory, LOCK, AtFlags::empty());
        // Fails where something else lies there, which is not ours to remove.
        let _ = rustix::fs::rmdir(&self.place.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cofferdam");
        assert!(Place::open(path.clone()).unwrap().is_none());
        Place::make(path.clone()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(Place::make(path.clone()).unwrap_err().message().contains("entered by others"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(Place::open(link).is_err());
    }

    #[test]
    fn one_daemon_at_a_time_and_nothing_left_after_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cofferdam");
        let place = || Place::make(path.clone()).unwrap();
        let first = Place::claim(&path).unwrap();
        assert!(place().is_taken() && place().connect().unwrap().is_some());
        let error = Place::claim(&path).unwrap_err();
        assert!(error.message().contains(&std::process::id().to_string()), "{error}");
        let removed = place();
        drop(first);
        assert!(!path.exists() && removed.listen().unwrap().is_none());
        // A stale socket, as one that was killed leaves it, is replaced.
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        drop(UnixListener::bind(path.join(SOCKET)).unwrap());
        assert!(place().connect().unwrap().is_none() && !place().is_taken());
        let again = Place::claim(&path).unwrap();
        assert!(place().connect().unwrap().is_some());
        drop(again);
    }

    #[test]
    fn a_runtime_directory_must_be_ours() {
        let base = tempfile::tempdir().unwrap();
        let named = |path: &Path| Candidates { runtime: Some(path.to_owned()), temporary: None }.directory();
        assert_eq!(named(base.path()), base.path().join("cofferdam"));
        assert_ne!(named(Path::new("relative")), Path::new("relative/cofferdam"));
        assert_ne!(named(&base.path().join("missing")), base.path().join("missing/cofferdam"));
    }
}

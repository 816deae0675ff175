//! Directories, locks and temporary files of the store.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cofferdam_util::{private, sha256};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Result, StoreError, io};
use crate::layer::stream::Sha;
use crate::layer::{LayerError, remove};

/// Time to wait for the lock of the store, which is held only for changes of names.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);
/// Time to wait for another process that adds the same file or layer.
const WORK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RECORD: u64 = 8 << 20;

pub(super) const BLOBS: &str = "blobs/sha256";
pub(super) const LAYERS: &str = "layers";
pub(super) const IMAGES: &str = "images";
pub(super) const NAMES: &str = "names";
pub(super) const WORK: &str = "work";
const LOCK: &str = "lock";
const WRITERS: &str = "writers";

/// Number of the next temporary of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The directory of a store.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) root: PathBuf,
}

/// The lock of the store.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "holds the lock")] File);

/// A file or directory with a temporary name, locked by this process, and removed unless it is moved into place.
#[derive(Debug)]
pub(super) struct Temporary {
    pub(super) path: PathBuf,
    #[expect(dead_code, reason = "holds the lock")]
    lock: File,
    is_moved: bool,
}

/// The kind of a temporary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
}

/// The result of [`Files::begin`].
#[derive(Debug)]
pub(super) enum Begun {
    /// The final file exists.
    Exists,
    /// This process creates it.
    Mine(Temporary),
}

impl Files {
    /// Creates missing directories, and refuses a store that other users can change.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let files = Self { root: root.to_owned() };
        for name in ["", BLOBS, LAYERS, IMAGES, NAMES, WORK] {
            let path = root.join(name);
            private::create_directory(&path).map_err(io("create", &path))?;
        }
        let found = fs::symlink_metadata(root).map_err(io("inspect", root))?;
        let reason = if found.is_dir() { private::exposure(&found) } else { Some("it is not a directory") };
        if let Some(reason) = reason {
            return Err(StoreError::Exposed { path: root.to_owned(), reason });
        }
        files.sweep_if_idle()?;
        Ok(files)
    }

    pub(super) fn blob(&self, digest: &Sha) -> PathBuf {
        self.root.join(BLOBS).join(digest.digits())
    }

    pub(super) fn layer(&self, contents: &Sha) -> PathBuf {
        self.root.join(LAYERS).join(contents.digits())
    }

    pub(super) fn image(&self, manifest: &Sha) -> PathBuf {
        self.root.join(IMAGES).join(manifest.digits())
    }

    pub(super) fn name(&self, canonical: &str) -> PathBuf {
        self.root.join(NAMES).join(sha256::of(canonical))
    }

    /// Waits for the lock of the store.
    pub(super) fn lock(&self) -> Result<Lock> {
        let path = self.root.join(LOCK);
        let file = open_lock(&path)?;
        wait(&file, FlockOperation::NonBlockingLockExclusive, &path, LOCK_TIMEOUT)?;
        Ok(Lock(file))
    }

    /// Registers this process as one that adds images: until it ends, files that no image has are kept.
    pub(super) fn register(&self) -> Result<File> {
        let path = self.root.join(WRITERS);
        let file = open_lock(&path)?;
        wait(&file, FlockOperation::NonBlockingLockShared, &path, LOCK_TIMEOUT)?;
        Ok(file)
    }

    /// Returns a descriptor that keeps other processes from adding images, or `None` if one does so now.
    pub(super) fn exclude_writers(&self) -> Result<Option<File>> {
        let path = self.root.join(WRITERS);
        let file = open_lock(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(io("lock", path)(error)),
        }
    }

    /// Creates a temporary with a fixed name, unless `done` exists. Waits while another process has the same
    /// temporary, and takes over that of a killed one.
    pub(super) fn begin(&self, name: &str, kind: Kind, done: &Path, waiting: &mut dyn FnMut()) -> Result<Begun> {
        let begun = Instant::now();
        let path = self.root.join(WORK).join(name);
        loop {
            let lock = self.lock()?;
            if fs::symlink_metadata(done).is_ok() {
                return Ok(Begun::Exists);
            }
            if self.sweep_one(&path)? {
                return Ok(Begun::Mine(create(path, kind)?));
            }
            drop(lock);
            if begun.elapsed() > WORK_TIMEOUT {
                return Err(StoreError::LockTimeout { path, limit: WORK_TIMEOUT });
            }
            waiting();
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Creates a temporary with a new name.
    pub(super) fn temporary(&self, kind: Kind) -> Result<Temporary> {
        let _lock = self.lock()?;
        self.temporary_locked(kind)
    }

    /// Creates a temporary with a new name under the lock of the store.
    pub(super) fn temporary_locked(&self, kind: Kind) -> Result<Temporary> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = self.root.join(WORK).join(format!("new-{}-{number}", std::process::id()));
            match create(path, kind) {
                // Of a process in another PID namespace, or of a killed one.
                Err(StoreError::Layer(LayerError::Io { source, .. }))
                    if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                other => return other,
            }
        }
    }

    /// Replaces a document atomically, under the lock of the store.
    pub(super) fn write_record(&self, _lock: &Lock, path: &Path, record: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec(record).map_err(std::io::Error::from).map_err(io("write", path))?;
        let temporary = self.temporary_locked(Kind::File)?;
        let mut file = OpenOptions::new().write(true).open(&temporary.path).map_err(io("open", &temporary.path))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(io("write", &temporary.path))?;
        temporary.persist(path)
    }

    /// Removes temporaries of killed processes, if there are any and no process holds the lock.
    fn sweep_if_idle(&self) -> Result<()> {
        let work = self.root.join(WORK);
        let mut entries = fs::read_dir(&work).map_err(io("read", &work))?;
        if entries.next().is_none() {
            return Ok(());
        }
        let path = self.root.join(LOCK);
        let file = open_lock(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(io("lock", path)(error)),
        }
        for entry in fs::read_dir(&work).map_err(io("read", &work))?.flatten() {
            self.sweep_one(&entry.path())?;
        }
        Ok(())
    }

    /// Removes a temporary unless a process has it. Returns true if it does not exist any more.
    fn sweep_one(&self, path: &Path) -> Result<bool> {
        let file = match open_nofollow(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(io("open", path)(error)),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => remove_all(path).map(|()| true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(io("lock", path)(error)),
        }
    }
}

impl Temporary {
    /// Gives it its final name, durably.
    pub(super) fn persist(mut self, into: &Path) -> Result<()> {
        fs::rename(&self.path, into).map_err(io("move into place", into))?;
        self.is_moved = true;
        sync_parent(into)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_moved {
            // If it fails, the next process that opens the store removes it.
            let _ = remove_all(&self.path);
        }
    }
}

/// Creates and locks a temporary, under the lock of the store.
fn create(path: PathBuf, kind: Kind) -> Result<Temporary> {
    match kind {
        Kind::File => {
            drop(OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(io("create", &path))?)
        }
        Kind::Directory => {
            use std::os::unix::fs::DirBuilderExt;
            fs::DirBuilder::new().mode(0o700).create(&path).map_err(io("create", &path))?;
        }
    }
    let lock = open_nofollow(&path).map_err(io("open", &path))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(io("lock", &path))?;
    Ok(Temporary { path, lock, is_moved: false })
}

/// Removes a file or a directory with everything in it, also beneath directories without write permission.
pub(super) fn remove_all(path: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = open_nofollow(parent).map_err(io("open", parent))?;
    Ok(remove::remove(parent.as_fd(), name, 0)?)
}

pub(super) fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    open_nofollow(parent).and_then(|directory| directory.sync_all()).map_err(io("write", parent))
}

/// Reads a document. Returns `None` if it does not exist.
pub(super) fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let file = match open_nofollow(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io("open", path)(error)),
    };
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text).map_err(io("read", path))?;
    serde_json::from_slice(&text).map(Some).map_err(|error| io("read", path)(std::io::Error::from(error)))
}

pub(super) fn open_nofollow(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn open_lock(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(io("open", path))?;
    Ok(file.into())
}

fn wait(file: &File, operation: FlockOperation, path: &Path, limit: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() > limit => {
                return Err(StoreError::LockTimeout { path: path.to_owned(), limit });
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(io("lock", path)(error)),
        }
    }
}

//! Store of kept change sets: one private directory with one file for each.
//!
//! ```text
//! .tmp-ID (locked by its writer) --complete, synced--> ID.tar --discard, prune--> removed
//! ID.tar --discard_only, discard_applied--> .tmp-ID --complete, synced--> ID.tar
//! ```
//!
//! A file gets its final name under the lock of the store. The file of a process that was killed keeps its temporary
//! name and has no lock, so the next call removes it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self as std_io, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cofferdam_linux::named;
use cofferdam_util::private;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::bounds::Bounds;
use crate::discard::{Discarded, Remainder};
use crate::error::{ChangesError, Result, io};
use crate::glob::Globs;
use crate::read::ChangeSet;
use crate::{resolve, text, tree};

const LOCK: &str = ".lock";
const TEMPORARY: &str = ".tmp-";
const SUFFIX: &str = ".tar";
/// Number of digits of an id.
const DIGITS: usize = 12;
/// Maximum number of change sets in a store.
const MAX_KEPT: usize = 10_000;
/// Maximum number of files in the directory of a store.
const MAX_FILES: usize = 3 * MAX_KEPT;
/// Default for the maximum size of all change sets.
pub const MAX_STORE_BYTES: u64 = 4 << 30;
/// Default for the maximum age of a change set.
pub const MAX_STORE_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Identifier of a stored change set: twelve hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

impl Id {
    fn new() -> std_io::Result<Self> {
        Ok(Self(cofferdam_util::hex::random(DIGITS / 2)?))
    }

    fn of_file(name: &OsStr) -> Option<Self> {
        let digits = name.to_str()?.strip_suffix(SUFFIX)?;
        (digits.len() == DIGITS && is_prefix(digits)).then(|| Self(digits.to_owned()))
    }

    fn file(&self) -> String {
        format!("{}{SUFFIX}", self.0)
    }

    /// Returns the digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_prefix(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Limits of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// Maximum size of all change sets, in bytes.
    pub max_bytes: u64,
    /// Maximum age of a change set.
    pub max_age: Duration,
    /// Limits of one change set.
    pub bounds: Bounds,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self { max_bytes: MAX_STORE_BYTES, max_age: MAX_STORE_AGE, bounds: Bounds::default() }
    }
}

/// A stored change set in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSet {
    /// Identifier.
    pub id: Id,
    /// Time at which it was stored.
    pub time: SystemTime,
    /// Size of its file, in bytes.
    pub bytes: u64,
    /// Contents. `None` if the file is damaged.
    pub contents: Option<StoredContents>,
}

/// Contents of a stored change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredContents {
    /// Path of the workspace on the host.
    pub workspace: PathBuf,
    /// Number of changed files, as in a review: a renamed file is one.
    pub changes: usize,
}

impl StoredContents {
    /// Describes a change set. Without its workspace, renamed files are not found, and count twice.
    #[must_use]
    pub fn of(set: &ChangeSet) -> Self {
        let workspace = set.header().workspace.clone();
        let directory = named::Directory::open(&workspace).ok();
        let directory = directory.filter(|directory| set.header().is_of(directory.as_fd()).unwrap_or(false));
        let changes = resolve::count(set, directory.as_ref().map(AsFd::as_fd));
        Self { workspace, changes }
    }
}

/// A store of change sets that several processes may use.
#[derive(Debug)]
pub struct Store {
    directory: OwnedFd,
    path: PathBuf,
    limits: StoreLimits,
}

impl Store {
    /// Opens a store and creates its directory if it is missing.
    ///
    /// # Errors
    ///
    /// [`ChangesError::Exposed`] if other users can change the directory, and those of the operating system.
    pub fn open(path: &Path, limits: StoreLimits) -> Result<Self> {
        private::create_directory(path).map_err(io("create", path))?;
        let found = named::Directory::open(path).map_err(io("open", path))?;
        let directory = tree::open_directory(found.as_fd(), Path::new("")).map_err(io("open", path))?;
        let handle = File::from(directory.try_clone().map_err(io("open", path))?);
        let metadata = handle.metadata().map_err(io("inspect", path))?;
        if let Some(reason) = private::exposure(&metadata) {
            return Err(ChangesError::Exposed { path: text::path(path), reason });
        }
        Ok(Self { directory, path: path.to_owned(), limits })
    }

    /// Stores a change set that `write` writes, and removes others that exceed the limits. Returns its identifier and
    /// the result of `write`. After an error, nothing is stored.
    ///
    /// # Errors
    ///
    /// Those of `write`, [`ChangesError::TooLarge`], and those of the operating system.
    pub fn keep<T>(&self, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<(Id, T)> {
        let (id, file) = self.create()?;
        let temporary = Temporary { store: self, name: format!("{TEMPORARY}{id}") };
        let mut limited = Limited { file: &file, left: self.limits.max_bytes, exceeded: false };
        let result = write(&mut limited);
        if limited.exceeded {
            return Err(ChangesError::TooLarge { what: "bytes for the store", max: self.limits.max_bytes });
        }
        let result = result?;
        file.sync_all().map_err(io("write", &self.path))?;
        let size = file.metadata().map_err(io("inspect", &self.path))?.len();
        let lock = self.lock()?;
        self.prune_locked(&lock, self.limits.max_bytes.saturating_sub(size), self.limits.max_age, MAX_KEPT - 1)?;
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.directory, &temporary.name, &self.directory, id.file(), flags)
            .map_err(io("store a change set in", &self.path))?;
        rustix::fs::fsync(&self.directory).map_err(io("store a change set in", &self.path))?;
        Ok((id, result))
    }

    /// Returns the stored change sets, the oldest first.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn list(&self) -> Result<Vec<StoredSet>> {
        let mut stored = Vec::new();
        for (id, time, bytes) in self.files()? {
            let contents = self.read(&id).ok().map(|set| StoredContents::of(&set));
            stored.push(StoredSet { id, time, bytes, contents });
        }
        Ok(stored)
    }

    /// Opens a stored change set by its identifier or by a prefix that no other has.
    ///
    /// # Errors
    ///
    /// [`ChangesError::NotFound`], [`ChangesError::Ambiguous`], and those of [`ChangeSet::read`].
    pub fn get(&self, id: &str) -> Result<(Id, ChangeSet)> {
        let id = self.find(id)?;
        let set = self.read(&id)?;
        Ok((id, set))
    }

    /// Removes a stored change set by its identifier or by a prefix that no other has.
    ///
    /// # Errors
    ///
    /// [`ChangesError::NotFound`], [`ChangesError::Ambiguous`], and those of the operating system.
    pub fn discard(&self, id: &str) -> Result<Id> {
        let _lock = self.lock()?;
        let id = self.find(id)?;
        self.remove(id.file())?;
        Ok(id)
    }

    /// Removes matching changes from a stored change set, or the whole change set if nothing else is in it. `directory`
    /// is the workspace. After an error or a kill, the change set is as before.
    ///
    /// # Errors
    ///
    /// [`ChangesError::NoMatch`], those of [`Store::get`], and those of the operating system.
    pub fn discard_only(&self, id: &str, directory: BorrowedFd<'_>, only: &Globs) -> Result<(Id, Discarded)> {
        self.shrink(id, |set| Remainder::of(set, directory, only))
    }

    /// Removes applied changes from a stored change set, or the whole change set if nothing else is in it. A directory
    /// stays while a change in it does. `directory` is the workspace. After an error or a kill, the change set is as before.
    ///
    /// # Errors
    ///
    /// Those of [`Store::get`], and those of the operating system.
    pub fn discard_applied(&self, id: &str, directory: BorrowedFd<'_>, applied: &[PathBuf]) -> Result<(Id, Discarded)> {
        self.shrink(id, |set| Remainder::unapplied(set, directory, applied))
    }

    fn shrink(
        &self,
        id: &str,
        remainder: impl for<'a> FnOnce(&'a ChangeSet) -> Result<Remainder<'a>>,
    ) -> Result<(Id, Discarded)> {
        // Held to the end: of two removals at once, the second begins with the result of the first.
        let _lock = self.lock()?;
        let (id, set) = self.get(id)?;
        let rest = remainder(&set)?;
        if rest.is_empty() {
            self.remove(id.file())?;
            return Ok((id, rest.discarded));
        }
        let temporary = Temporary { store: self, name: format!("{TEMPORARY}{id}") };
        let file = File::from(self.open_at(&temporary.name, OFlags::RDWR | OFlags::EXCL)?);
        rest.write(&file)?;
        // Nothing replaces a change set that the reader would refuse.
        ChangeSet::read(file.try_clone().map_err(io("read", &self.path))?, &self.limits.bounds)?;
        if let Some((_, time, _)) = self.files()?.into_iter().find(|(found, ..)| *found == id) {
            file.set_modified(time).map_err(io("write", &self.path))?;
        }
        file.sync_all().map_err(io("write", &self.path))?;
        rustix::fs::renameat(&self.directory, &temporary.name, &self.directory, id.file())
            .map_err(io("store a change set in", &self.path))?;
        rustix::fs::fsync(&self.directory).map_err(io("store a change set in", &self.path))?;
        Ok((id, rest.discarded))
    }

    /// Removes change sets that are too old, and the oldest ones until the rest has at most `max_bytes`. Returns what
    /// was removed.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn prune(&self, max_bytes: u64, max_age: Duration) -> Result<Vec<Id>> {
        let lock = self.lock()?;
        self.prune_locked(&lock, max_bytes, max_age, MAX_KEPT)
    }

    fn prune_locked(&self, _lock: &OwnedFd, max_bytes: u64, max_age: Duration, max_count: usize) -> Result<Vec<Id>> {
        let files = self.files()?;
        let mut total = files.iter().fold(0_u64, |sum, (_, _, bytes)| sum.saturating_add(*bytes));
        let (mut count, mut removed) = (files.len(), Vec::new());
        for (id, time, bytes) in files {
            let expired = time.elapsed().is_ok_and(|age| age > max_age);
            if expired || total > max_bytes || count > max_count {
                self.remove(id.file())?;
                total = total.saturating_sub(bytes);
                count -= 1;
                removed.push(id);
            }
        }
        Ok(removed)
    }

    /// Returns identifiers, times and sizes, the oldest first.
    fn files(&self) -> Result<Vec<(Id, SystemTime, u64)>> {
        let mut files = Vec::new();
        for name in self.names()? {
            let Some(id) = Id::of_file(&name) else { continue };
            // Another process may remove it meanwhile.
            let Ok(Some(stat)) = tree::stat(self.directory.as_fd(), &name) else { continue };
            let nanoseconds = u64::try_from(crate::fingerprint::Fingerprint::of(&stat).mtime).unwrap_or(0);
            files.push((id, SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds), tree::size(&stat)));
        }
        files.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
        Ok(files)
    }

    fn names(&self) -> Result<Vec<OsString>> {
        tree::names(self.directory.as_fd(), MAX_FILES).map_err(io("read", &self.path))
    }

    /// Returns the identifier of a stored change set by a prefix that no other has.
    ///
    /// # Errors
    ///
    /// [`ChangesError::NotFound`], [`ChangesError::Ambiguous`], and those of the operating system.
    pub fn find(&self, id: &str) -> Result<Id> {
        let shown = || text::name(id.as_bytes());
        if !is_prefix(id) {
            return Err(ChangesError::NotFound { id: shown() });
        }
        let names = self.names()?;
        let mut found = names.iter().filter_map(|name| Id::of_file(name)).filter(|found| found.0.starts_with(id));
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => Err(ChangesError::Ambiguous { id: shown() }),
            (None, _) => Err(ChangesError::NotFound { id: shown() }),
        }
    }

    fn read(&self, id: &Id) -> Result<ChangeSet> {
        let name = id.file();
        let path = self.path.join(&name);
        match tree::open_file(self.directory.as_fd(), OsStr::new(&name)) {
            Ok(Some((file, _))) => ChangeSet::read(file, &self.limits.bounds),
            Ok(None) => Err(ChangesError::NotFound { id: id.to_string() }),
            Err(error) => Err(io("open", &path)(error)),
        }
    }

    /// Creates a locked file with a temporary name, and removes those of killed processes.
    fn create(&self) -> Result<(Id, File)> {
        let lock = self.lock()?;
        let id = Id::new().map_err(io("create a change set in", &self.path))?;
        let file = self.open_at(&format!("{TEMPORARY}{id}"), OFlags::WRONLY | OFlags::EXCL)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(io("lock", &self.path))?;
        drop(lock);
        Ok((id, File::from(file)))
    }

    /// Waits for the lock of the store, which the returned descriptor holds, and removes files of killed processes.
    fn lock(&self) -> Result<OwnedFd> {
        let lock = self.open_at(LOCK, OFlags::RDWR)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(io("lock", &self.path)(error)),
            }
        }
        for name in self.names()? {
            if name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
                self.remove_leftover(&name)?;
            }
        }
        Ok(lock)
    }

    fn remove_leftover(&self, name: &OsStr) -> Result<()> {
        let Ok(Some((file, _))) = tree::open_file(self.directory.as_fd(), name) else { return Ok(()) };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.remove(name),
            // Its writer is alive.
            Err(Errno::WOULDBLOCK) => Ok(()),
            Err(error) => Err(io("lock", &self.path)(error)),
        }
    }

    fn open_at(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(io("open", &self.path))
    }

    fn remove(&self, name: impl AsRef<OsStr>) -> Result<()> {
        match rustix::fs::unlinkat(&self.directory, name.as_ref(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(io("remove a change set from", &self.path)(error)),
        }
    }
}

/// A file with a temporary name, which is removed unless it has its final one.
struct Temporary<'a> {
    store: &'a Store,
    name: String,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // The next call tries again.
        let _ = self.store.remove(&self.name);
    }
}

/// A file that takes a limited number of bytes.
struct Limited<'a> {
    file: &'a File,
    left: u64,
    exceeded: bool,
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> std_io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.exceeded = true;
            return Err(std_io::ErrorKind::FileTooLarge.into());
        }
        let length = (&*self.file).write(bytes)?;
        self.left -= length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> std_io::Result<()> {
        Ok(())
    }
}

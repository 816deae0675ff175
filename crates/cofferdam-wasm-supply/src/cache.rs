//! The directory that keeps what was obtained. An entry is a directory whose name holds the recipe's; it appears whole,
//! by a rename, and its `manifest` names each file with its hash.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cofferdam_linux::trust::{self, Secrecy};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::digest;
use crate::error::{Result, SupplyError, io};

const MANIFEST: &str = "manifest";
const FORMAT: &str = "cofferdam interpreter 1";

/// A directory of entries, each whole and as it was written, or not there.
pub struct Cache {
    root: PathBuf,
}

/// Held while something is obtained; given up when dropped, also by a process that is killed.
pub struct Lock {
    _file: File,
}

impl Cache {
    /// The cache in this directory, which is made by [`Self::prepare`].
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn entry(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Makes the directory, for this user alone, and refuses one that somebody else could write to.
    pub fn prepare(&self) -> Result<()> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        made.map_err(io("create the cache", &self.root))?;
        self.check_root()
    }

    /// Takes the lock of `name`. Calls `on_wait` and waits only where another process holds it.
    pub fn lock(&self, name: &str, on_wait: impl FnOnce()) -> Result<Lock> {
        let path = self.root.join(format!(".{name}.lock"));
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        // Whatever lies there, opening it does not wait.
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
        let file = options.custom_flags(flags.cast_signed()).open(&path).map_err(io("open", &path))?;
        let lock = |operation| rustix::fs::flock(&file, operation);
        let locked = match lock(FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                on_wait();
                lock(FlockOperation::LockExclusive)
            }
            other => other,
        };
        locked.map_err(|error| io("lock", &path)(error.into()))?;
        self.sweep(name);
        Ok(Lock { _file: file })
    }

    /// A new directory beside the entries, removed when dropped.
    pub fn scratch(&self, name: &str) -> Result<tempfile::TempDir> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(&scratch_prefix(name)).tempdir_in(&self.root).map_err(io("make a directory in", &self.root))
    }

    /// What interrupted runs left. Under the lock nobody uses it.
    fn sweep(&self, name: &str) {
        let prefix = scratch_prefix(name);
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                // Left over again at worst, and swept by the next.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Writes the manifest of `made` and moves it to its place at once.
    pub fn publish(&self, made: &Path, name: &str, files: &[&str]) -> Result<()> {
        let mut manifest = format!("{FORMAT}\n");
        for file in files {
            let path = made.join(file);
            manifest.push_str(&format!("{} {file}\n", digest::of_file(&path)?));
            File::open(&path).and_then(|file| file.sync_all()).map_err(io("write", &path))?;
        }
        let path = made.join(MANIFEST);
        fs::write(&path, manifest).map_err(io("write", &path))?;
        let target = self.entry(name);
        fs::rename(made, &target).map_err(io("move into place", target))
    }

    /// The hash of each of `files`, if the entry is there, is this user's alone, and is what its manifest says. What is
    /// there and is not so is removed.
    pub(crate) fn verified(&self, name: &str, files: &[&str]) -> Result<Option<Vec<String>>> {
        let opened = self.open(name, files)?;
        Ok(opened.map(|opened| opened.into_iter().map(|(hash, _)| hash).collect()))
    }

    /// Opens each of `files`, whose bytes were hashed through what is returned. As [`Self::publish`] wrote them, or
    /// nothing: an entry that is damaged, or that another user could have written to, is removed.
    ///
    /// # Errors
    ///
    /// [`SupplyError::UntrustedCache`] if the cache directory itself is not this user's alone.
    pub fn open(&self, name: &str, files: &[&str]) -> Result<Option<Vec<(String, File)>>> {
        let entry = self.entry(name);
        if fs::symlink_metadata(&entry).is_err() {
            return Ok(None);
        }
        self.check_root()?;
        if let Ok(opened) = self.opened(&entry, files) {
            return Ok(Some(opened));
        }
        self.remove(name)?;
        Ok(None)
    }

    /// Removes an entry that is of no use, if it is there.
    pub fn remove(&self, name: &str) -> Result<()> {
        let entry = self.entry(name);
        let Ok(found) = fs::symlink_metadata(&entry) else { return Ok(()) };
        let removed = if found.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
        removed.map_err(io("remove a damaged file of the cache", &entry))
    }

    fn opened(&self, entry: &Path, files: &[&str]) -> Result<Vec<(String, File)>> {
        self.check(entry)?;
        let manifest = entry.join(MANIFEST);
        self.check(&manifest)?;
        let text = fs::read_to_string(&manifest).map_err(io("read", &manifest))?;
        let mut lines = text.lines();
        let mut opened = Vec::new();
        let known = lines.next() == Some(FORMAT);
        for file in files {
            let path = entry.join(file);
            self.check(&path)?;
            let pinned = lines.next().and_then(|line| line.strip_suffix(file)).and_then(|line| line.strip_suffix(' '));
            let Some(pinned) = pinned.filter(|_| known) else {
                return Err(self.untrusted(&manifest, "it does not name its files"));
            };
            let open = File::open(&path).map_err(io("open", &path))?;
            opened.push((pinned.to_owned(), path, open));
        }
        hashed(opened)
    }

    /// Checks the cache and the directories that lead to it.
    fn check_root(&self) -> Result<()> {
        self.check(&self.root)?;
        trust::check(&self.root, Secrecy::Public)
            .map(drop)
            .map_err(|distrust| self.untrusted(&self.root, &format!("{distrust}; {}", distrust.remedy())))
    }

    /// No link, of this user, and writable by nobody else.
    fn check(&self, path: &Path) -> Result<()> {
        let found = fs::symlink_metadata(path).map_err(io("look at", path))?;
        if found.file_type().is_symlink() {
            return Err(self.untrusted(path, "it is a link"));
        }
        if !found.is_file() && !found.is_dir() {
            return Err(self.untrusted(path, "it is neither a file nor a directory"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(self.untrusted(path, "it belongs to another user"));
        }
        if found.mode() & 0o022 != 0 {
            return Err(self.untrusted(path, "other users may write to it; take that right away (chmod go-w)"));
        }
        Ok(())
    }

    fn untrusted(&self, path: &Path, reason: &str) -> SupplyError {
        SupplyError::UntrustedCache { path: path.to_owned(), reason: reason.to_owned() }
    }
}

/// Compares each file with its hash, at once where threads are to be had: whoever starts an interpreter waits for this.
fn hashed(files: Vec<(String, PathBuf, File)>) -> Result<Vec<(String, File)>> {
    let compare = |(pinned, path, open): &(String, PathBuf, File)| digest::expect_of(&mut &*open, path, pinned);
    std::thread::scope(|scope| {
        let begin = |file| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || compare(file));
            (file, thread.ok())
        };
        let begun: Vec<_> = files.iter().map(begin).collect();
        begun.into_iter().try_for_each(|(file, thread)| match thread.map(std::thread::ScopedJoinHandle::join) {
            Some(Ok(compared)) => compared,
            _ => compare(file),
        })
    })?;
    Ok(files.into_iter().map(|(pinned, _, open)| (pinned, open)).collect())
}

fn scratch_prefix(name: &str) -> String {
    format!(".{name}.making.")
}

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
        self.each(name, files, |Found { hash, path, file }| {
            digest::expect_of(&mut &*file, path, hash)?;
            Ok(hash.clone())
        })
    }

    /// Returns each of `files` with its hash, as [`Self::publish`] wrote it, or nothing: an entry that is damaged, or that
    /// another user could have written to, is removed.
    ///
    /// What is returned is a copy in memory that is sealed, and it is the copy that was hashed: whatever becomes of the
    /// files later, it can neither change nor get shorter.
    ///
    /// # Errors
    ///
    /// [`SupplyError::UntrustedCache`] if the cache directory itself is not this user's alone; [`SupplyError::Io`] if there is
    /// no memory for a copy.
    pub fn open(&self, name: &str, files: &[&str]) -> Result<Option<Vec<(String, File)>>> {
        self.each(name, files, |Found { hash, path, file }| {
            digest::sealed(&mut &*file, path, hash).map(|copy| (hash.clone(), copy))
        })
    }

    /// Does something with each of `files`, at once where threads are to be had: the start of an interpreter waits for this.
    fn each<T: Send>(
        &self,
        name: &str,
        files: &[&str],
        act: impl Fn(&Found) -> Result<T> + Sync,
    ) -> Result<Option<Vec<T>>> {
        let entry = self.entry(name);
        if fs::symlink_metadata(&entry).is_err() {
            return Ok(None);
        }
        self.check_root()?;
        match self.found(&entry, files).and_then(|found| for_each(&found, act)) {
            Ok(done) => return Ok(Some(done)),
            // There is no room for a copy, which says nothing about the entry.
            Err(error @ SupplyError::Io { operation: digest::COPY, .. }) => return Err(error),
            Err(_) => {}
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

    fn found(&self, entry: &Path, files: &[&str]) -> Result<Vec<Found>> {
        self.check(entry)?;
        let manifest = entry.join(MANIFEST);
        self.check(&manifest)?;
        let text = fs::read_to_string(&manifest).map_err(io("read", &manifest))?;
        let mut lines = text.lines();
        let mut found = Vec::new();
        let known = lines.next() == Some(FORMAT);
        for file in files {
            let path = entry.join(file);
            self.check(&path)?;
            let pinned = lines.next().and_then(|line| line.strip_suffix(file)).and_then(|line| line.strip_suffix(' '));
            let Some(pinned) = pinned.filter(|_| known) else {
                return Err(self.untrusted(&manifest, "it does not name its files"));
            };
            let file = File::open(&path).map_err(io("open", &path))?;
            found.push(Found { hash: pinned.to_owned(), path, file });
        }
        Ok(found)
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

/// A file of an entry, and what its manifest says that it holds.
struct Found {
    hash: String,
    path: PathBuf,
    file: File,
}

fn for_each<T: Send>(found: &[Found], act: impl Fn(&Found) -> Result<T> + Sync) -> Result<Vec<T>> {
    let act = &act;
    std::thread::scope(|scope| {
        let begin = |file| (file, std::thread::Builder::new().spawn_scoped(scope, move || act(file)).ok());
        let begun: Vec<_> = found.iter().map(begin).collect();
        let join = |(file, thread): (_, Option<std::thread::ScopedJoinHandle<'_, _>>)| match thread.map(|it| it.join())
        {
            Some(Ok(done)) => done,
            _ => act(file),
        };
        begun.into_iter().map(join).collect()
    })
}

fn scratch_prefix(name: &str) -> String {
    format!(".{name}.making.")
}

//! The cache directory. An entry is a directory whose name contains the recipe's name. It appears complete, by a
//! rename, and its `manifest` lists each file with its hash.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::private;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::digest;
use crate::error::{Result, RuntimesError, io};

const MANIFEST: &str = "manifest";
const FORMAT: &str = "cofferdam interpreter 1";

/// A directory of entries. Each entry is either complete and unchanged, or absent.
pub struct Cache {
    root: PathBuf,
}

/// An exclusive lock on one entry. It is released when dropped, and also when its process is killed.
pub struct Lock {
    _file: File,
}

impl Cache {
    /// Returns the cache in this directory. [`Self::prepare`] creates the directory.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn entry(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Creates the directory with access for this user only, and refuses one that another user can write to.
    pub fn prepare(&self) -> Result<()> {
        private::create_directory(&self.root).map_err(io("create the cache", &self.root))?;
        self.check_root()
    }

    /// Takes the lock of `name`. Calls `on_wait` and waits only if another process holds it.
    pub fn lock(&self, name: &str, on_wait: impl FnOnce()) -> Result<Lock> {
        let path = self.root.join(format!(".{name}.lock"));
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        // The open does not block, whatever kind of file has this name.
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

    /// Creates a new directory beside the entries. It is removed when dropped.
    pub fn scratch(&self, name: &str) -> Result<tempfile::TempDir> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(&scratch_prefix(name)).tempdir_in(&self.root).map_err(io("create a directory in", &self.root))
    }

    /// Removes the scratch directories of interrupted runs. The caller holds the lock, so no process uses them.
    fn sweep(&self, name: &str) {
        let prefix = scratch_prefix(name);
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                // On failure the directory stays, and the next sweep removes it.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Writes the manifest of the directory `staged` and renames it to the entry `name`.
    pub fn publish(&self, staged: &Path, name: &str, files: &[&str]) -> Result<()> {
        let mut manifest = format!("{FORMAT}\n");
        for file in files {
            let path = staged.join(file);
            manifest.push_str(&format!("{} {file}\n", digest::of_file(&path)?));
            File::open(&path).and_then(|file| file.sync_all()).map_err(io("write", &path))?;
        }
        let path = staged.join(MANIFEST);
        fs::write(&path, manifest).map_err(io("write", &path))?;
        let target = self.entry(name);
        fs::rename(staged, &target).map_err(io("move into place", target))
    }

    /// Returns the hash of each of `files` if the entry exists, belongs to this user alone, and matches its manifest.
    /// An entry that fails these checks is removed. An entry that cannot be checked stays, and is an error.
    pub(crate) fn verified(&self, name: &str, files: &[&str]) -> Result<Option<Vec<String>>> {
        self.map_files_or_evict(name, files, |Found { hash, path, file }| {
            digest::expect_of(&mut &*file, path, hash)?;
            Ok(hash.clone())
        })
    }

    /// Returns each of `files` with its hash, as [`Self::publish`] wrote it. Returns nothing, and removes the entry, if
    /// it is damaged or if another user could have written to it.
    ///
    /// Each returned file is a sealed copy in memory, and the hash is that of the copy. Later changes to the file in
    /// the cache can neither change nor truncate it.
    ///
    /// # Errors
    ///
    /// [`RuntimesError::UntrustedCache`] if the cache directory itself does not belong to this user alone;
    /// [`RuntimesError::Io`] if a file cannot be read or copied into memory. The entry then stays.
    pub fn open(&self, name: &str, files: &[&str]) -> Result<Option<Vec<(String, File)>>> {
        self.map_files_or_evict(name, files, |Found { hash, path, file }| {
            digest::sealed(&mut &*file, path, hash).map(|copy| (hash.clone(), copy))
        })
    }

    /// Runs `act` on each of `files`, and removes the entry if that shows that it is damaged. Runs in parallel if
    /// threads can be started: the start of an interpreter waits for this.
    ///
    /// # Errors
    ///
    /// Any error that can occur for an intact entry too, such as a lack of memory, space or descriptors. The entry then
    /// stays.
    fn map_files_or_evict<T: Send>(
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
            Ok(done) => Ok(Some(done)),
            Err(error) if error.shows_damage() => self.remove(name).map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Removes an entry, if it exists.
    pub fn remove(&self, name: &str) -> Result<()> {
        let entry = self.entry(name);
        let Ok(found) = fs::symlink_metadata(&entry) else { return Ok(()) };
        let removed = if found.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
        removed.map_err(io("remove a damaged cache entry", &entry))
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
                return Err(self.untrusted(&manifest, "it does not list its files"));
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

    /// Checks that the path is not a link, belongs to this user, and is writable by no other user.
    fn check(&self, path: &Path) -> Result<()> {
        let found = fs::symlink_metadata(path).map_err(io("inspect", path))?;
        if found.file_type().is_symlink() {
            return Err(self.untrusted(path, "it is a link"));
        }
        if !found.is_file() && !found.is_dir() {
            return Err(self.untrusted(path, "it is neither a file nor a directory"));
        }
        match private::exposure(&found) {
            Some(reason) => Err(self.untrusted(path, reason)),
            None => Ok(()),
        }
    }

    fn untrusted(&self, path: &Path, reason: &str) -> RuntimesError {
        RuntimesError::UntrustedCache { path: path.to_owned(), reason: reason.to_owned() }
    }
}

/// A file of an entry, with the hash from its manifest.
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

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    const FILES: [&str; 1] = ["state"];

    /// Opens an entry, where the work on its file fails with `error`. Returns the result, and true if the entry stays.
    fn open_with(error: RuntimesError) -> (Result<Option<Vec<()>>>, bool) {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("cache"));
        cache.prepare().unwrap();
        let staged = directory.path().join("staged");
        fs::create_dir(&staged).unwrap();
        fs::write(staged.join(FILES[0]), "abc").unwrap();
        cache.publish(&staged, "entry", &FILES).unwrap();
        let error = once(error);
        let result = cache.map_files_or_evict("entry", &FILES, |_| Err(error()));
        let stays = cache.open("entry", &FILES).unwrap().is_some();
        (result, stays)
    }

    /// Returns a function that returns the error once.
    fn once(error: RuntimesError) -> impl Fn() -> RuntimesError {
        let error = std::sync::Mutex::new(Some(error));
        move || error.lock().unwrap().take().expect("one file")
    }

    fn failed(kind: ErrorKind) -> RuntimesError {
        io("read", "state")(Error::from(kind))
    }

    #[test]
    fn intact_entry_stays_if_the_host_lacks_resources() {
        let exhausted = |errno: Errno| io("open", "state")(errno.into());
        for error in [
            failed(ErrorKind::StorageFull),
            failed(ErrorKind::QuotaExceeded),
            failed(ErrorKind::OutOfMemory),
            failed(ErrorKind::Interrupted),
            exhausted(Errno::MFILE),
            exhausted(Errno::NFILE),
            exhausted(Errno::IO),
        ] {
            let what = error.to_string();
            let (result, stays) = open_with(error);
            assert_eq!(result.expect_err(&what).to_string(), what);
            assert!(stays, "{what}: an intact entry was removed");
        }
    }

    #[test]
    fn damaged_entry_is_removed() {
        let wrong_hash =
            RuntimesError::WrongHash { what: "state".into(), expected: "a".to_owned(), found: "b".to_owned() };
        let untrusted = RuntimesError::UntrustedCache { path: "state".into(), reason: "it is a link".to_owned() };
        let kinds = [ErrorKind::NotFound, ErrorKind::InvalidData, ErrorKind::IsADirectory].map(failed);
        for error in kinds.into_iter().chain([wrong_hash, untrusted]) {
            let what = error.to_string();
            let (result, stays) = open_with(error);
            assert!(result.expect(&what).is_none(), "{what}");
            assert!(!stays, "{what}: a damaged entry stays");
        }
    }
}

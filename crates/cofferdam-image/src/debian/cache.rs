//! The cache of downloaded packages.
//!
//! ```text
//! lock                 held during changes; apt inherits it, so it stays held until a killed apt has ended
//! apt-ARCHITECTURE/    package lists, as apt keeps them
//! packages/HASH.deb    downloads, by content; renamed into place once the hash was compared
//! work.XXXX/           of one run; the next run removes the directories of killed runs
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::{private, sha256};

use super::error::{DebianError, Result, io};
use super::package::Package;
use super::progress::Progress;

/// Maximum wait for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Age at which unused packages are removed.
const MAX_UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const WORK: &str = "work.";

/// A directory of packages. Several processes can share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

/// The lock of the cache, held during changes. It is released when dropped, or when the process ends.
pub(crate) struct Lock {
    file: File,
    root: PathBuf,
}

impl Cache {
    /// Creates a cache in this directory, which is created on first use.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Removes packages that no build used for `age`. Returns the number of bytes removed.
    ///
    /// # Errors
    ///
    /// [`DebianError::BadCache`] if other users can write to the directory, [`DebianError::Busy`] if another process
    /// uses it for half an hour.
    pub fn prune(&self, age: Duration) -> Result<u64> {
        Ok(self.lock(&mut |_| ())?.prune(age))
    }

    /// Waits until no other process changes the cache, and locks it.
    pub(crate) fn lock(&self, progress: &mut dyn FnMut(Progress)) -> Result<Lock> {
        let root = self.prepare()?;
        let path = root.join("lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        // Links are not followed, so that no other file is locked or created by mistake.
        let file = options.custom_flags(rustix_nofollow()).open(&path).map_err(io("open", &path))?;
        let begun = Instant::now();
        let mut reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(io("lock", &path)(error)),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_TIMEOUT => {
                    return Err(DebianError::Busy { path, limit: LOCK_TIMEOUT });
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut reported, true) {
                        progress(Progress::Waiting);
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
        let lock = Lock { file, root };
        lock.sweep();
        Ok(lock)
    }

    /// Creates the directory and returns its absolute path. Refuses one that another user could write to.
    fn prepare(&self) -> Result<PathBuf> {
        let created = DirBuilder::new().recursive(true).mode(0o755).create(&self.root);
        created.map_err(io("create the cache", &self.root))?;
        let root = self.root.canonicalize().map_err(io("find the cache", &self.root))?;
        let found = fs::metadata(&root).map_err(io("inspect", &root))?;
        let bad = |reason: &str| Err(DebianError::BadCache { path: root.clone(), reason: reason.to_owned() });
        if let Some(reason) = private::exposure(&found) {
            return bad(reason);
        }
        if let Err(distrust) = trust::check(&root, Secrecy::Public) {
            return bad(&format!("{distrust}; {}", distrust.remedy()));
        }
        Ok(root)
    }
}

fn rustix_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

impl Lock {
    /// Returns another descriptor of the same lock.
    pub(crate) fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(io("copy the lock of", &self.root))
    }

    /// Creates and returns a directory of the cache.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        let created = DirBuilder::new().recursive(true).mode(0o755).create(&path);
        created.map_err(io("make", &path)).map(|()| path)
    }

    /// Creates a temporary directory of this run.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir> {
        use std::os::unix::fs::PermissionsExt;
        let mut builder = tempfile::Builder::new();
        // Nothing in it is secret, and root's apt works as a user of its own.
        builder.prefix(WORK).permissions(fs::Permissions::from_mode(0o755));
        builder.tempdir_in(&self.root).map_err(io("create a directory in", &self.root))
    }

    /// Removes the directories of killed runs. No process uses them while the lock is held.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(WORK) {
                // At worst the directory remains, and the next run removes it.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn store(&self) -> Result<PathBuf> {
        self.directory("packages")
    }

    fn path(&self, package: &Package) -> Result<PathBuf> {
        Ok(self.store()?.join(format!("{}.deb", package.sha256)))
    }

    /// Opens the package and verifies its hash. Removes a damaged one.
    pub(crate) fn open(&self, package: &Package, mut seen: impl FnMut(u64)) -> Result<Option<File>> {
        let path = self.path(package)?;
        let Ok(mut file) = OpenOptions::new().read(true).custom_flags(rustix_nofollow()).open(&path) else {
            return Ok(None);
        };
        let hash = sha256::of_pieces(&file, |piece| {
            seen(piece.len() as u64);
            Ok(())
        });
        let hash = hash.map_err(io("read", &path))?;
        if hash != package.sha256 {
            fs::remove_file(&path).map_err(io("remove a damaged file of the cache", &path))?;
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0)).map_err(io("read", &path))?;
        // Only for pruning. On a file system without times, packages are pruned too early at worst.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(file))
    }

    /// Moves a downloaded file into the cache if its hash is right, and removes it otherwise.
    pub(crate) fn keep(&self, package: &Package, came: &Path) -> Result<()> {
        let file = File::open(came).map_err(io("open", came))?;
        let found = sha256::of_reader(&file).map_err(io("read", came))?;
        if found != package.sha256 {
            fs::remove_file(came).map_err(io("remove", came))?;
            let expected = package.sha256.clone();
            return Err(DebianError::WrongHash { package: package.name.clone(), expected, found });
        }
        file.sync_all().map_err(io("write", came))?;
        let path = self.path(package)?;
        fs::rename(came, &path).map_err(io("move into place", path))
    }

    /// Links a cached file into `directory` under apt's name for it.
    pub(crate) fn link_into(&self, package: &Package, directory: &Path) -> Result<()> {
        let target = directory.join(&package.file);
        let path = self.path(package)?;
        fs::hard_link(&path, &target).or_else(|_| fs::copy(&path, &target).map(|_| ())).map_err(io("link", target))
    }

    pub(crate) fn prune_old(&self) {
        self.prune(MAX_UNUSED);
    }

    fn prune(&self, age: Duration) -> u64 {
        let Ok(store) = self.store() else { return 0 };
        let entries = fs::read_dir(store).into_iter().flatten().flatten();
        let old = entries.filter_map(|entry| {
            let found = entry.metadata().ok()?;
            let unused = SystemTime::now().duration_since(found.modified().ok()?).unwrap_or_default();
            (unused >= age && fs::remove_file(entry.path()).is_ok()).then_some(found.len())
        });
        old.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_cache_that_others_may_write_to_is_refused() {
        let temp = tempfile::tempdir().expect("a directory");
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).expect("permissions");
        let error = Cache::new(temp.path()).prune(MAX_UNUSED).expect_err("refused");
        assert!(matches!(error, DebianError::BadCache { .. }), "{error}");
    }

    #[test]
    fn leftovers_of_killed_builds_and_old_packages_are_pruned() {
        let temp = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(temp.path().join("cache"));
        assert_eq!(cache.prune(MAX_UNUSED).expect("pruned"), 0);
        let root = temp.path().join("cache");
        fs::create_dir_all(root.join("work.abc/archives")).expect("left over");
        fs::create_dir_all(root.join("packages")).expect("packages");
        for (name, days) in [("new.deb", 1), ("old.deb", 31)] {
            let file = File::create(root.join("packages").join(name)).expect("a package");
            file.set_len(7).expect("bytes");
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 86_400)).expect("time");
        }
        assert_eq!(cache.prune(MAX_UNUSED).expect("pruned"), 7);
        assert!(!root.join("work.abc").exists());
        assert!(root.join("packages/new.deb").exists() && !root.join("packages/old.deb").exists());
    }

    #[test]
    fn second_process_waits_and_reports_it() {
        let temp = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(temp.path());
        let first = cache.lock(&mut |_| ()).expect("locked");
        let second = std::thread::spawn({
            let cache = cache.clone();
            move || {
                let mut reported = Vec::new();
                let lock = cache.lock(&mut |step| reported.push(step)).map(drop);
                (lock.is_ok(), reported)
            }
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!second.is_finished());
        drop(first);
        assert_eq!(second.join().expect("ended"), (true, vec![Progress::Waiting]));
    }
}

//! The directory with built images.
//!
//! ```text
//! lock              held during changes
//! KIND-KEY/         one entry, named after its inputs; appears atomically by a rename
//!   manifest.json   every file's size and SHA-256
//! last-ORIGIN       the key of the last entry for this origin
//! name-NAME         the image with this name
//! work.XXXX/        temporary files of one run; the next run removes those of a killed run
//! ```
//!
//! Only its owner can read it: a root file system may contain private keys. A store that an earlier version left
//! readable for other users is made private when it is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::{hex, private, sha256};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{ImageError, Result, io};
use super::{Progress, names};

/// Time to wait for another process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const WORK: &str = "work.";
const LAST: &str = "last-";
const MANIFEST: &str = "manifest.json";
const MAX_MANIFEST: u64 = 64 << 10;

/// Returns the lower-case hexadecimal SHA-256 of parts, each preceded by its length.
pub(crate) fn key(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex::encode(hasher.finalize())
}

/// Names of files, each with its size and the SHA-256 of its contents.
pub(crate) type Files = BTreeMap<String, (u64, String)>;

/// The manifest of an entry.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// Free text of the builder.
    note: String,
    files: Files,
}

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// A lock that is held during changes.
#[derive(Debug)]
pub(crate) struct Lock {
    root: PathBuf,
    _file: File,
}

/// An entry whose files were all verified by their hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub directory: PathBuf,
    pub key: String,
    pub note: String,
}

impl Store {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns size and note of an entry from its manifest. No file is read or verified.
    pub(crate) fn glance(&self, kind: &str, key: &str) -> Option<(u64, String)> {
        let directory = self.root.join(format!("{kind}-{key}"));
        let manifest: Manifest = serde_json::from_slice(&read_small(&directory.join(MANIFEST)).ok()?).ok()?;
        let exists = |(name, (size, _)): (&String, &(u64, String))| {
            !name.contains('/') && fs::symlink_metadata(directory.join(name)).is_ok_and(|found| found.len() == *size)
        };
        if !manifest.files.iter().all(exists) {
            return None;
        }
        Some((manifest.files.values().map(|(size, _)| size).sum(), manifest.note))
    }

    /// Returns the files of an entry from its manifest. No file is read or verified.
    pub(crate) fn files(&self, kind: &str, key: &str) -> Option<Files> {
        let text = read_small(&self.root.join(format!("{kind}-{key}")).join(MANIFEST)).ok()?;
        serde_json::from_slice::<Manifest>(&text).ok().map(|manifest| manifest.files)
    }

    /// Returns kinds and keys of all entries, in order.
    pub(crate) fn entries(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let part = |name: String| {
            let (kind, key) = name.rsplit_once('-')?;
            (sha256::is_digest(key) && format!("{kind}-") != LAST).then(|| (kind.to_owned(), key.to_owned()))
        };
        let all: BTreeSet<(String, String)> = names.filter_map(part).collect();
        all.into_iter().collect()
    }

    /// Returns an entry if it exists and is undamaged.
    pub(crate) fn open(&self, kind: &str, key: &str) -> Result<Option<Entry>> {
        let directory = self.root.join(format!("{kind}-{key}"));
        let Ok(text) = read_small(&directory.join(MANIFEST)) else { return Ok(None) };
        let Ok(manifest) = serde_json::from_slice::<Manifest>(&text) else { return Ok(None) };
        self.check()?;
        for (name, (size, hash)) in &manifest.files {
            let path = directory.join(name);
            let Ok(file) = open(&path) else { return Ok(None) };
            let found = file.metadata().map_err(io("inspect", &path))?;
            if name.contains('/')
                || found.len() != *size
                || sha256::of_reader(file).map_err(io("read", &path))? != *hash
            {
                return Ok(None);
            }
        }
        Ok(Some(Entry { directory, key: key.to_owned(), note: manifest.note }))
    }

    /// Returns the key of the last entry for this origin, and marks it as used.
    pub(crate) fn last(&self, origin: &str) -> Option<String> {
        let key = self.peek(origin)?;
        // Only for pruning: on a file system without times, it may be pruned too early.
        let _ = open(&self.root.join(format!("{LAST}{origin}"))).and_then(|file| file.set_modified(SystemTime::now()));
        Some(key)
    }

    /// Returns the key of the last entry for this origin, without marking it as used.
    pub(crate) fn peek(&self, origin: &str) -> Option<String> {
        let path = self.root.join(format!("{LAST}{origin}"));
        String::from_utf8(read_small(&path).ok()?).ok().filter(|key| sha256::is_digest(key))
    }

    /// Removes entries without a name that no origin used within `age`. Returns the bytes that this frees.
    pub(crate) fn prune(&self, age: Duration, progress: &mut dyn FnMut(Progress)) -> Result<u64> {
        let _lock = self.lock(progress)?;
        let entries: Vec<_> = fs::read_dir(&self.root).map_err(io("read", &self.root))?.flatten().collect();
        let named = names::all(self).into_iter();
        let mut used: BTreeSet<String> = named.flat_map(|(_, named)| [named.kernel, named.root]).collect();
        for entry in &entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(origin) = name.strip_prefix(LAST) else { continue };
            let changed = entry.metadata().and_then(|found| found.modified()).unwrap_or_else(|_| SystemTime::now());
            if changed.elapsed().unwrap_or_default() >= age {
                fs::remove_file(entry.path()).map_err(io("remove", entry.path()))?;
            } else {
                used.extend(self.peek(origin));
            }
        }
        let mut freed = 0;
        for entry in &entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let key = name.rsplit_once('-').map(|(_, key)| key).filter(|key| sha256::is_digest(key));
            if name.starts_with(LAST) || key.is_none_or(|key| used.contains(key)) {
                continue;
            }
            let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            freed += files.filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum::<u64>();
            fs::remove_dir_all(entry.path()).map_err(io("remove", entry.path()))?;
        }
        Ok(freed)
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self, progress: &mut dyn FnMut(Progress)) -> Result<Lock> {
        private::create_directory(&self.root).map_err(io("create the cache", &self.root))?;
        self.check()?;
        let path = self.root.join("lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(nofollow());
        let file = options.open(&path).map_err(io("open", &path))?;
        let begun = Instant::now();
        let mut reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(io("lock", &path)(error)),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_TIMEOUT => {
                    return Err(ImageError::LockTimeout { path, limit: LOCK_TIMEOUT });
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut reported, true) {
                        progress(Progress::Waiting);
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
        let lock = Lock { root: self.root.clone(), _file: file };
        lock.sweep();
        Ok(lock)
    }

    /// Removes temporary files of killed runs, if there are any and the lock is free: its holder has removed them
    /// already.
    pub(crate) fn tidy(&self) {
        let mut entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        if !entries.any(|entry| entry.file_name().to_string_lossy().starts_with(WORK)) || self.check().is_err() {
            return;
        }
        // It exists: the run that left the files created it.
        let mut options = OpenOptions::new();
        let Ok(file) = options.read(true).write(true).custom_flags(nofollow()).open(self.root.join("lock")) else {
            return;
        };
        if file.try_lock().is_ok() {
            Lock { root: self.root.clone(), _file: file }.sweep();
        }
    }

    /// Refuses a directory that another user could write to.
    fn check(&self) -> Result<()> {
        let found = fs::metadata(&self.root).map_err(io("inspect the cache", &self.root))?;
        if let Some(reason) = private::exposure(&found) {
            return Err(ImageError::ExposedStore { path: self.root.clone(), reason });
        }
        if found.mode() & 0o077 != 0 {
            make_private(&self.root).map_err(io("make private", &self.root))?;
        }
        trust::check(&self.root, Secrecy::Public)?;
        Ok(())
    }
}

/// Removes other users' permissions from a store and from the entries in it, which makes their files inaccessible.
fn make_private(root: &Path) -> std::io::Result<()> {
    fs::set_permissions(root, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(root)?.flatten() {
        // The entry is in a private directory, so no other user can put a link here.
        if entry.file_type()?.is_dir() {
            fs::set_permissions(entry.path(), Permissions::from_mode(0o700))?;
        }
    }
    Ok(())
}

fn nofollow() -> i32 {
    OFlags::NOFOLLOW.bits().cast_signed()
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nofollow()).open(path)
}

pub(crate) fn read_small(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open(path)?.take(MAX_MANIFEST).read_to_end(&mut text)?;
    Ok(text)
}

impl Lock {
    /// Creates a temporary directory, which is removed when it is dropped.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(WORK).permissions(Permissions::from_mode(0o700));
        builder.tempdir_in(&self.root).map_err(io("create a directory in", &self.root))
    }

    /// Moves a directory of [`Self::scratch`] into the store as an entry, replacing an existing one.
    pub(crate) fn keep(&self, kind: &str, key: &str, prepared: &Path, note: &str) -> Result<Entry> {
        self.keep_if(kind, key, prepared, note, |_| Ok(()))
    }

    /// Does the same as [`Self::keep`], if `check` accepts sizes and hashes of the files.
    pub(crate) fn keep_if(
        &self,
        kind: &str,
        key: &str,
        prepared: &Path,
        note: &str,
        check: impl FnOnce(&Files) -> Result<()>,
    ) -> Result<Entry> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(prepared).map_err(io("read", prepared))? {
            let path = entry.map_err(io("read", prepared))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let file = open(&path).map_err(io("open", &path))?;
            file.sync_all().map_err(io("write", &path))?;
            let size = file.metadata().map_err(io("inspect", &path))?.len();
            files.insert(name, (size, sha256::of_reader(file).map_err(io("read", &path))?));
            // The directory keeps other users out. A VMM that runs as another user reopens its descriptors.
            fs::set_permissions(&path, Permissions::from_mode(0o444)).map_err(io("set the mode of", &path))?;
        }
        check(&files)?;
        let note = note.to_owned();
        let text = serde_json::to_vec(&Manifest { note: note.clone(), files }).unwrap_or_default();
        write_synced(&prepared.join(MANIFEST), &text)?;
        fs::set_permissions(prepared, Permissions::from_mode(0o700)).map_err(io("set the mode of", prepared))?;
        let directory = self.root.join(format!("{kind}-{key}"));
        if let Err(error) = fs::remove_dir_all(&directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(io("remove the damaged entry", &directory)(error));
        }
        fs::rename(prepared, &directory).map_err(io("move into place", &directory))?;
        Ok(Entry { directory, key: key.to_owned(), note })
    }

    /// Records the last entry for an origin.
    pub(crate) fn remember(&self, origin: &str, key: &str) -> Result<()> {
        self.replace(&self.root.join(format!("{LAST}{origin}")), key.as_bytes())
    }

    /// Removes the records of these keys for all origins, so that they can be pruned.
    pub(crate) fn disown(&self, keys: &[String]) -> Result<()> {
        for entry in fs::read_dir(&self.root).map_err(io("read", &self.root))? {
            let path = entry.map_err(io("read", &self.root))?.path();
            let is_last = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LAST));
            let key = if is_last { read_small(&path).ok() } else { None };
            if key.is_some_and(|found| keys.iter().any(|key| key.as_bytes() == found)) {
                fs::remove_file(&path).map_err(io("remove", path))?;
            }
        }
        Ok(())
    }

    /// Replaces a small file of the cache atomically.
    pub(crate) fn replace(&self, path: &Path, contents: &[u8]) -> Result<()> {
        let (name, temporary) = (path.file_name().unwrap_or_default(), format!("{WORK}last"));
        let root = File::open(&self.root);
        root.and_then(|root| private::replace_file(root, name, temporary, contents)).map_err(io("write", path))
    }

    /// Removes temporary files of killed runs. Under the lock, no other process uses them.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(WORK) {
                make_removable(&entry.path());
                // If it fails, the next sweep removes them.
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
    }
}

/// Adds write permission to directories, so that their contents can be removed.
pub(crate) fn make_removable(path: &Path) {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if !is_directory {
        return;
    }
    // If this fails, the removal fails, and reports it.
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        make_removable(&entry.path());
    }
}

fn write_synced(path: &Path, contents: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(nofollow());
    let mut file = options.open(path).map_err(io("create", path))?;
    file.write_all(contents).and_then(|()| file.sync_all()).map_err(io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(_: Progress) {}

    #[test]
    fn damaged_cache_entry_is_built_again() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::new(temp.path().join("cache"));
        let key = key(&[b"a"]);
        let make = || {
            let lock = store.lock(&mut quiet).unwrap();
            let scratch = lock.scratch().unwrap();
            fs::create_dir(scratch.path().join("made")).unwrap();
            fs::write(scratch.path().join("made/file"), "contents").unwrap();
            lock.keep("kind", &key, &scratch.path().join("made"), "note").unwrap()
        };
        assert_eq!(store.open("kind", &key).unwrap(), None);
        let entry = make();
        assert_eq!(store.open("kind", &key).unwrap().as_ref(), Some(&entry));
        let file = entry.directory.join("file");
        for damage in ["contentz", "content", ""] {
            fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
            fs::write(&file, damage).unwrap();
            assert_eq!(store.open("kind", &key).unwrap(), None, "{damage}");
            assert_eq!(make(), entry);
        }
        fs::write(entry.directory.join(MANIFEST), "{}").unwrap();
        assert_eq!(store.open("kind", &key).unwrap(), None);
        fs::remove_file(&file).unwrap();
        make();
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert_eq!(store.open("kind", &key).unwrap(), None);
    }

    #[test]
    fn leftovers_are_swept_and_foreign_directories_refused() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("cache");
        let store = Store::new(&root);
        drop(store.lock(&mut quiet).unwrap());
        fs::create_dir_all(root.join("work.dead/closed")).unwrap();
        fs::write(root.join("work.dead/closed/x"), "").unwrap();
        fs::set_permissions(root.join("work.dead/closed"), Permissions::from_mode(0o500)).unwrap();
        let lock = store.lock(&mut quiet).unwrap();
        assert!(!root.join("work.dead").exists());
        let origin = key(&[b"origin"]);
        lock.remember(&origin, &key(&[b"x"])).unwrap();
        assert_eq!(store.last(&origin), Some(key(&[b"x"])));
        drop(lock);
        fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(store.lock(&mut quiet), Err(ImageError::ExposedStore { .. })));
    }

    #[test]
    fn a_store_is_readable_by_its_owner_only_and_an_older_one_is_closed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("cache");
        let store = Store::new(&root);
        let key = key(&[b"a"]);
        let lock = store.lock(&mut quiet).unwrap();
        let scratch = lock.scratch().unwrap();
        fs::create_dir(scratch.path().join("made")).unwrap();
        fs::write(scratch.path().join("made/file"), "a key").unwrap();
        let entry = lock.keep("kind", &key, &scratch.path().join("made"), "").unwrap();
        lock.remember("origin", &key).unwrap();
        drop((lock, scratch));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let all = |root: &Path| {
            let names = ["", "lock", "last-origin"].map(|name| root.join(name)).into_iter();
            let entries = ["", "file", MANIFEST].map(|name| entry.directory.join(name));
            names.chain(entries).map(|path| mode(&path)).collect()
        };
        let found: Vec<u32> = all(&root);
        assert_eq!(found, [0o700, 0o600, 0o600, 0o700, 0o444, 0o600]);
        for path in [&root, &entry.directory] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        assert!(store.open("kind", &key).unwrap().is_some());
        assert_eq!((mode(&root), mode(&entry.directory)), (0o700, 0o700));
    }

    #[test]
    fn unused_cache_entries_are_pruned() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::new(temp.path().join("cache"));
        let keys = [key(&[b"used"]), key(&[b"old"]), key(&[b"unknown"])];
        let lock = store.lock(&mut quiet).unwrap();
        for key in &keys {
            let scratch = lock.scratch().unwrap();
            fs::create_dir(scratch.path().join("made")).unwrap();
            fs::write(scratch.path().join("made/file"), "1234567").unwrap();
            lock.keep("kind", key, &scratch.path().join("made"), "").unwrap();
        }
        lock.remember("used", &keys[0]).unwrap();
        lock.remember("old", &keys[1]).unwrap();
        drop(lock);
        let old = File::open(temp.path().join("cache/last-old")).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
        assert!(store.prune(Duration::from_secs(500), &mut quiet).unwrap() >= 14);
        let exists = |at: usize| store.open("kind", &keys[at]).unwrap().is_some();
        assert!(exists(0) && !exists(1) && !exists(2));
        assert_eq!((store.last("used"), store.last("old")), (Some(keys[0].clone()), None));
    }

    #[test]
    fn pruning_makes_nothing_younger() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::new(temp.path().join("cache"));
        let built = key(&[b"made"]);
        store.lock(&mut quiet).unwrap().remember("origin", &built).unwrap();
        let path = temp.path().join("cache/last-origin");
        let before = SystemTime::now() - Duration::from_secs(1000);
        File::open(&path).unwrap().set_modified(before).unwrap();
        store.prune(Duration::from_secs(5000), &mut quiet).unwrap();
        assert_eq!(store.peek("origin"), Some(built.clone()));
        let changed = || fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(changed(), before);
        assert_eq!(store.last("origin"), Some(built));
        assert!(changed() > before);
    }

    #[test]
    fn parts_of_a_key_do_not_run_together() {
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_ne!(key(&[b"ab"]), key(&[b"ab", b""]));
    }
}

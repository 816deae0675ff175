//! The directory that keeps what was made.
//!
//! ```text
//! lock              held by whoever makes or removes something
//! KIND-KEY/         one entry, named after all that it was made from; appears by a rename, whole
//!   manifest.json   every file's size and SHA-256
//! last-ORIGIN       the key of what was made last for this origin
//! name-NAME         what has this name, for people
//! work.XXXX/        of one run; what a killed run left is swept by the next, whether that makes something or not
//! ```
//!
//! Only its owner reads it: a root file system holds what its maker put there, private keys too. A store that an earlier
//! version left open to others is closed when it is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_linux::trust::{self, Secrecy};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Progress, names};
use crate::error::{Result, VmError, io};

/// How long to wait for another process.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
const WORK: &str = "work.";
const LAST: &str = "last-";
const MANIFEST: &str = "manifest.json";
const MAX_MANIFEST: u64 = 64 << 10;

/// Lower-case hexadecimal SHA-256 of parts, each with its length before it.
pub(crate) fn key(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hexadecimal(&hasher.finalize())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of all that comes.
pub(crate) fn hash_of(mut from: impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 17];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(hexadecimal(&hasher.finalize())),
            length => hasher.update(&piece[..length]),
        }
    }
}

pub(crate) fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Names of files, each with its size and the SHA-256 of its contents.
pub(crate) type Files = BTreeMap<String, (u64, String)>;

/// What an entry holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// Free text of whoever made it.
    note: String,
    files: Files,
}

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// Held while something is changed.
#[derive(Debug)]
pub(crate) struct Lock {
    root: PathBuf,
    _file: File,
}

/// An entry whose files were all compared with their hashes.
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

    /// What an entry holds by its manifest, with nothing of it read or compared: its bytes and its note.
    pub(crate) fn glance(&self, kind: &str, key: &str) -> Option<(u64, String)> {
        let directory = self.root.join(format!("{kind}-{key}"));
        let manifest: Manifest = serde_json::from_slice(&read_small(&directory.join(MANIFEST)).ok()?).ok()?;
        let there = |(name, (size, _)): (&String, &(u64, String))| {
            !name.contains('/') && fs::symlink_metadata(directory.join(name)).is_ok_and(|found| found.len() == *size)
        };
        if !manifest.files.iter().all(there) {
            return None;
        }
        Some((manifest.files.values().map(|(size, _)| size).sum(), manifest.note))
    }

    /// Returns the files of an entry by its manifest; none of it is read or compared.
    pub(crate) fn files(&self, kind: &str, key: &str) -> Option<Files> {
        let text = read_small(&self.root.join(format!("{kind}-{key}")).join(MANIFEST)).ok()?;
        serde_json::from_slice::<Manifest>(&text).ok().map(|manifest| manifest.files)
    }

    /// Kinds and keys of all entries, in order.
    pub(crate) fn entries(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let part = |name: String| {
            let (kind, key) = name.rsplit_once('-')?;
            (is_key(key) && format!("{kind}-") != LAST).then(|| (kind.to_owned(), key.to_owned()))
        };
        let all: BTreeSet<(String, String)> = names.filter_map(part).collect();
        all.into_iter().collect()
    }

    /// An entry, if it is there and whole. One that is damaged counts as none.
    pub(crate) fn open(&self, kind: &str, key: &str) -> Result<Option<Entry>> {
        let directory = self.root.join(format!("{kind}-{key}"));
        let Ok(text) = read_small(&directory.join(MANIFEST)) else { return Ok(None) };
        let Ok(manifest) = serde_json::from_slice::<Manifest>(&text) else { return Ok(None) };
        self.check()?;
        for (name, (size, hash)) in &manifest.files {
            let path = directory.join(name);
            let Ok(file) = open(&path) else { return Ok(None) };
            let found = file.metadata().map_err(io("look at", &path))?;
            if name.contains('/') || found.len() != *size || hash_of(file).map_err(io("read", &path))? != *hash {
                return Ok(None);
            }
        }
        Ok(Some(Entry { directory, key: key.to_owned(), note: manifest.note }))
    }

    /// The key of what was made last for this origin, which is asked for herewith.
    pub(crate) fn last(&self, origin: &str) -> Option<String> {
        let key = self.peek(origin)?;
        // Only for pruning; a file system that keeps no times prunes too early at worst.
        let _ = open(&self.root.join(format!("{LAST}{origin}"))).and_then(|file| file.set_modified(SystemTime::now()));
        Some(key)
    }

    /// The key of what was made last for this origin, which is as old afterwards as before.
    pub(crate) fn peek(&self, origin: &str) -> Option<String> {
        let path = self.root.join(format!("{LAST}{origin}"));
        String::from_utf8(read_small(&path).ok()?).ok().filter(|key| is_key(key))
    }

    /// Removes what has no name and what no origin asked for within `age`. Gives how many bytes that were.
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
            let key = name.rsplit_once('-').map(|(_, key)| key).filter(|key| is_key(key));
            if name.starts_with(LAST) || key.is_none_or(|key| used.contains(key)) {
                continue;
            }
            let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            freed += files.filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum::<u64>();
            fs::remove_dir_all(entry.path()).map_err(io("remove", entry.path()))?;
        }
        Ok(freed)
    }

    /// Waits until nobody else changes anything.
    pub(crate) fn lock(&self, progress: &mut dyn FnMut(Progress)) -> Result<Lock> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        made.map_err(io("make the cache", &self.root))?;
        self.check()?;
        let path = self.root.join("lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(nofollow());
        let file = options.open(&path).map_err(io("open", &path))?;
        let begun = Instant::now();
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(io("lock", &path)(error)),
                Err(TryLockError::WouldBlock) if begun.elapsed() > PATIENCE => {
                    return Err(VmError::Busy { path, limit: PATIENCE });
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
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

    /// Removes what killed runs left, if there is any and nobody holds the lock: whoever does has swept already.
    pub(crate) fn tidy(&self) {
        let mut entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        if !entries.any(|entry| entry.file_name().to_string_lossy().starts_with(WORK)) || self.check().is_err() {
            return;
        }
        // It is there: whoever left something had made it.
        let mut options = OpenOptions::new();
        let Ok(file) = options.read(true).write(true).custom_flags(nofollow()).open(self.root.join("lock")) else {
            return;
        };
        if file.try_lock().is_ok() {
            Lock { root: self.root.clone(), _file: file }.sweep();
        }
    }

    /// Refuses a directory that somebody else could write to.
    fn check(&self) -> Result<()> {
        let found = fs::metadata(&self.root).map_err(io("look at the cache", &self.root))?;
        let bad = |reason| Err(VmError::BadCache { path: self.root.clone(), reason });
        if found.uid() != rustix::process::geteuid().as_raw() {
            return bad("it belongs to another user");
        }
        if found.mode() & 0o022 != 0 {
            return bad("other users may write to it");
        }
        if found.mode() & 0o077 != 0 {
            make_private(&self.root).map_err(io("make private", &self.root))?;
        }
        trust::check(&self.root, Secrecy::Public)?;
        Ok(())
    }
}

/// Takes the rights of other users from a store and from the entries in it, whose files nobody else reaches then.
fn make_private(root: &Path) -> std::io::Result<()> {
    fs::set_permissions(root, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(root)?.flatten() {
        // Only our own directory holds it, so that no other user can put a link here.
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
    /// A directory of this run, gone when it is dropped.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(WORK).permissions(Permissions::from_mode(0o700));
        builder.tempdir_in(&self.root).map_err(io("make a directory in", &self.root))
    }

    /// Makes an entry of the files in a directory of [`Self::scratch`], which it takes the place of what was there.
    pub(crate) fn keep(&self, kind: &str, key: &str, made: &Path, note: &str) -> Result<Entry> {
        self.keep_if(kind, key, made, note, |_| Ok(()))
    }

    /// Makes an entry as [`Self::keep`] does, if `check` accepts the sizes and hashes that its files have.
    pub(crate) fn keep_if(
        &self,
        kind: &str,
        key: &str,
        made: &Path,
        note: &str,
        check: impl FnOnce(&Files) -> Result<()>,
    ) -> Result<Entry> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(made).map_err(io("read", made))? {
            let path = entry.map_err(io("read", made))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let file = open(&path).map_err(io("open", &path))?;
            file.sync_all().map_err(io("write", &path))?;
            let size = file.metadata().map_err(io("look at", &path))?.len();
            files.insert(name, (size, hash_of(file).map_err(io("read", &path))?));
            // The directory keeps others out. A monitor that runs as another user opens its descriptors again.
            fs::set_permissions(&path, Permissions::from_mode(0o444)).map_err(io("close", &path))?;
        }
        check(&files)?;
        let note = note.to_owned();
        let text = serde_json::to_vec(&Manifest { note: note.clone(), files }).unwrap_or_default();
        write_whole(&made.join(MANIFEST), &text)?;
        fs::set_permissions(made, Permissions::from_mode(0o700)).map_err(io("close", made))?;
        let directory = self.root.join(format!("{kind}-{key}"));
        if let Err(error) = fs::remove_dir_all(&directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(io("remove what is damaged,", &directory)(error));
        }
        fs::rename(made, &directory).map_err(io("move into place", &directory))?;
        Ok(Entry { directory, key: key.to_owned(), note })
    }

    /// Remembers what was made for an origin.
    pub(crate) fn remember(&self, origin: &str, key: &str) -> Result<()> {
        self.replace(&self.root.join(format!("{LAST}{origin}")), key.as_bytes())
    }

    /// Forgets that these keys were made for any origin, so that they can be pruned.
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

    /// Makes a small file of the cache anew, in one step.
    pub(crate) fn replace(&self, path: &Path, contents: &[u8]) -> Result<()> {
        let making = self.root.join(format!("{WORK}last"));
        write_whole(&making, contents)?;
        fs::rename(&making, path).map_err(io("move into place", path))
    }

    /// What killed runs left. Under the lock nobody uses it.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(WORK) {
                open_up(&entry.path());
                // Left over again at worst, and swept by the next.
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
    }
}

/// Gives the right to remove what is in directories that were closed.
pub(crate) fn open_up(path: &Path) {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if !is_directory {
        return;
    }
    // What cannot be opened up cannot be removed, which is then told.
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        open_up(&entry.path());
    }
}

fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
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
    fn what_is_damaged_counts_as_none_and_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::new(place.path().join("cache"));
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
    fn leftovers_are_swept_and_strangers_are_kept_out() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("cache");
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
        assert!(matches!(store.lock(&mut quiet), Err(VmError::BadCache { .. })));
    }

    #[test]
    fn a_store_is_readable_by_its_owner_only_and_an_older_one_is_closed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("cache");
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
    fn what_nobody_asked_for_is_pruned() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::new(place.path().join("cache"));
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
        let old = File::open(place.path().join("cache/last-old")).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
        assert!(store.prune(Duration::from_secs(500), &mut quiet).unwrap() >= 14);
        let there = |at: usize| store.open("kind", &keys[at]).unwrap().is_some();
        assert!(there(0) && !there(1) && !there(2));
        assert_eq!((store.last("used"), store.last("old")), (Some(keys[0].clone()), None));
    }

    #[test]
    fn pruning_makes_nothing_younger() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::new(place.path().join("cache"));
        let made = key(&[b"made"]);
        store.lock(&mut quiet).unwrap().remember("origin", &made).unwrap();
        let path = place.path().join("cache/last-origin");
        let before = SystemTime::now() - Duration::from_secs(1000);
        File::open(&path).unwrap().set_modified(before).unwrap();
        store.prune(Duration::from_secs(5000), &mut quiet).unwrap();
        assert_eq!(store.peek("origin"), Some(made.clone()));
        let changed = || fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(changed(), before);
        assert_eq!(store.last("origin"), Some(made));
        assert!(changed() > before);
    }

    #[test]
    fn parts_of_a_key_do_not_run_together() {
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_ne!(key(&[b"ab"]), key(&[b"ab", b""]));
    }
}

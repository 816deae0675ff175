//! The directory of installed plugins.
//!
//! ```text
//! plugins/
//!   lock                   held during changes
//!   installed/NAME.json    the installed version: digest, key, time; replaced atomically by a rename
//!   keys/FINGERPRINT.pem   a trusted key
//!   store/DIGEST/          an unpacked package, named after its digest; appears atomically by a rename
//!     index.json, signature.json, files/
//!   store/work.XXXX/       a package that is being unpacked or removed; the next change removes those of a killed one
//! ```
//!
//! Only its owner can enter it. A host that uses an installed plugin holds a shared lock of its index, so that no
//! upgrade removes the files of a running plugin.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use chrono::{SecondsFormat, Utc};
use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::{private, sha256};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::archive::{FILES, INDEX, Package};
use super::error::{PackageError, Result, io, printable};
use super::grants::{Grant, added, grants};
use super::index::{Index, MAX_INDEX};
use super::key::PublicKey;
use super::unpack::unpack;
use crate::Manifest;

/// The maximum size of a record.
const MAX_RECORD: usize = 4096;
/// The maximum length of a name, as in the schema of manifests.
const MAX_NAME: usize = 64;
/// The number of attempts to open a plugin that other processes upgrade meanwhile.
const RACE_TRIES: usize = 16;
const WORK: &str = "work.";

/// The record of an installed plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The digest of the package.
    pub digest: String,
    /// The fingerprint of the key that signed it.
    pub key: String,
    /// The time of the installation, in RFC 3339.
    pub time: String,
}

/// An installed plugin. While it exists, its files are not removed.
#[derive(Debug)]
pub struct Installed {
    /// The record.
    pub record: Record,
    /// The directory of its files, which are read-only.
    pub directory: PathBuf,
    /// The manifest.
    pub manifest: Manifest,
    /// The index, with a shared lock.
    _lock: File,
}

/// The comparison of a package with the installed version, which a user approves.
#[derive(Debug)]
pub struct Review {
    /// The installed version.
    pub previous: Option<Record>,
    /// The grants that the package has and the installed version has not.
    pub added: Vec<Grant>,
    /// True if the key of the package is trusted already.
    pub is_known_key: bool,
}

impl Review {
    /// Refuses a package that is signed with another key than the installed version, unless that is accepted.
    pub fn check_key(&self, package: &Package, change: KeyChange) -> Result<()> {
        check_key(self.previous.as_ref(), &package.signer().fingerprint(), change)
    }
}

/// The treatment of a package that is signed with another key than the installed version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// Refuse it.
    Refuse,
    /// Accept it.
    Accept,
}

/// The directory of installed plugins.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// Returns the installed plugins by name. A damaged one is an error of its own.
pub fn installed(data_dir: &Path) -> Result<Vec<(String, Result<Installed>)>> {
    let store = Store::new(data_dir);
    let all = store.names()?.into_iter().map(|name| {
        let found = store.find(&name);
        (name, found)
    });
    Ok(all.collect())
}

/// Returns an installed plugin. Verifies its index by the digest of its package.
pub fn find(data_dir: &Path, name: &str) -> Result<Installed> {
    Store::new(data_dir).find(name)
}

impl Store {
    /// Names the store in a directory for data. It need not exist.
    pub fn new(data_dir: &Path) -> Self {
        Self { root: data_dir.join("plugins") }
    }

    /// Compares a package with the installed version.
    pub fn review(&self, package: &Package) -> Result<Review> {
        let name = &package.manifest().name;
        let previous = self.record(name)?;
        let added = match (&previous, self.find(name)) {
            (None, _) => Vec::new(),
            (Some(_), Ok(installed)) => added(&installed.manifest, package.manifest()),
            (Some(_), Err(_)) => grants(package.manifest()),
        };
        Ok(Review { previous, added, is_known_key: self.is_known(&package.signer()) })
    }

    /// Trusts a key: packages that it signs can be installed.
    pub fn trust(&self, key: &PublicKey) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.key_path(key);
        self.replace(&path, key.to_pem().as_bytes())
    }

    /// Installs a package whose review was approved. Either all of it becomes visible or nothing.
    ///
    /// # Errors
    /// [`PackageError::UnknownKey`], [`PackageError::OtherKey`], [`PackageError::Changed`] if the installed version is no
    /// longer the reviewed one, and those of [`Package::open`] if the file changed since.
    pub fn install(&self, package: &Package, review: &Review, change: KeyChange) -> Result<Installed> {
        let manifest = package.manifest();
        let name = &manifest.name;
        let _lock = self.lock()?;
        let key = package.signer().fingerprint();
        if !self.is_known(&package.signer()) {
            return Err(PackageError::UnknownKey { fingerprint: key });
        }
        let current = self.record(name)?;
        check_key(current.as_ref(), &key, change)?;
        let digest_of = |record: &Option<Record>| record.as_ref().map(|record| record.digest.clone());
        let found = digest_of(&current);
        if found != digest_of(&review.previous) && found.as_deref() != Some(package.digest()) {
            return Err(PackageError::Changed { name: name.clone() });
        }
        self.keep(package)?;
        let time = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let (version, digest) = (manifest.version.clone(), package.digest().to_owned());
        let record = Record { name: name.clone(), version, digest, key, time };
        self.replace(&self.record_path(name), &serde_json::to_vec(&record).unwrap_or_default())?;
        let installed = self.find(name)?;
        self.sweep();
        Ok(installed)
    }

    /// Removes an installed plugin. The files of a running one remain until the next change after its end.
    pub fn uninstall(&self, name: &str) -> Result<()> {
        let missing = || PackageError::NotInstalled { name: printable(name) };
        if !is_name(name) || !self.root.exists() {
            return Err(missing());
        }
        let _lock = self.lock()?;
        let path = self.record_path(name);
        fs::remove_file(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => missing(),
            _ => io("remove", &path)(error),
        })?;
        self.sweep();
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Installed> {
        for _ in 0..RACE_TRIES {
            let missing = || PackageError::NotInstalled { name: printable(name) };
            let record = self.record(name)?.ok_or_else(missing)?;
            let opened = self.open(&record);
            // The shared lock protects the files from now on, if they are still those of the record.
            if self.record(name)?.is_some_and(|now| now.digest == record.digest) {
                return opened;
            }
        }
        Err(PackageError::Changed { name: printable(name) })
    }

    /// Opens the unpacked package of a record, and verifies its index.
    fn open(&self, record: &Record) -> Result<Installed> {
        let damaged = |reason: &str| PackageError::Damaged { name: record.name.clone(), reason: reason.to_owned() };
        let directory = self.package_path(&record.digest);
        let file = open(&directory.join(INDEX)).map_err(|_| damaged("its index is missing"))?;
        file.lock_shared().map_err(io("lock", &directory))?;
        let bytes = bounded(&file, MAX_INDEX).map_err(|_| damaged("its index cannot be read"))?;
        if sha256::of(&bytes) != record.digest {
            return Err(damaged("its index does not have the digest of its package"));
        }
        let (_, manifest) = Index::read(&bytes).map_err(|error| damaged(&error.to_string()))?;
        if manifest.name != record.name {
            return Err(damaged("its manifest has another name"));
        }
        Ok(Installed { record: record.clone(), directory: directory.join(FILES), manifest, _lock: file })
    }

    /// Returns the record of a plugin, if it is installed.
    fn record(&self, name: &str) -> Result<Option<Record>> {
        if !is_name(name) || !self.root.exists() {
            return Ok(None);
        }
        self.check()?;
        let path = self.record_path(name);
        let file = match open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io("open", &path))?,
        };
        let damaged = || PackageError::Damaged { name: name.to_owned(), reason: "its record is invalid".to_owned() };
        let record: Record =
            serde_json::from_slice(&bounded(&file, MAX_RECORD).map_err(|_| damaged())?).map_err(|_| damaged())?;
        match record.name == name && sha256::is_digest(&record.digest) && sha256::is_digest(&record.key) {
            true => Ok(Some(record)),
            false => Err(damaged()),
        }
    }

    /// Returns the names of all records, sorted.
    fn names(&self) -> Result<BTreeSet<String>> {
        let directory = self.root.join("installed");
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries.map_err(io("read", &directory))?,
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(io("read", &directory))?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".json")).filter(|name| is_name(name));
            names.extend(name.map(str::to_owned));
        }
        Ok(names)
    }

    /// Unpacks a package into its directory, unless it is there.
    fn keep(&self, package: &Package) -> Result<()> {
        let destination = self.package_path(package.digest());
        let existing = open(&destination.join(INDEX)).and_then(|file| bounded(&file, MAX_INDEX));
        if existing.is_ok_and(|bytes| bytes == package.head[0]) {
            return Ok(());
        }
        self.discard(&destination)?;
        let parent = self.root.join("store");
        let work = tempfile::Builder::new().prefix(WORK).tempdir_in(&parent).map_err(io("create", &parent))?;
        unpack(package, work.path())?;
        fs::rename(work.path(), &destination).map_err(io("move into place", &destination))?;
        // The directory has another name now, and stays.
        let _ = work.keep();
        Ok(())
    }

    /// Waits for the lock, and removes what killed processes left.
    fn lock(&self) -> Result<File> {
        for directory in ["installed", "keys", "store"] {
            let path = self.root.join(directory);
            private::create_directory(&path).map_err(io("create", &path))?;
        }
        self.check()?;
        let path = self.root.join("lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(nofollow());
        let file = options.open(&path).map_err(io("open", &path))?;
        file.lock().map_err(io("lock", &path))?;
        self.sweep();
        Ok(file)
    }

    /// Removes temporary directories, and packages that no record names and no host uses. What cannot be removed now is
    /// removed by the next change.
    fn sweep(&self) {
        let names = self.names().unwrap_or_default();
        let used: BTreeSet<String> =
            names.iter().filter_map(|name| self.record(name).ok()?).map(|record| record.digest).collect();
        for entry in fs::read_dir(self.root.join("store")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(WORK) {
                let _ = fs::remove_dir_all(entry.path());
            } else if sha256::is_digest(&name) && !used.contains(&name) {
                let _ = self.discard(&entry.path());
            }
        }
        for directory in ["installed", "keys"] {
            let _ = fs::remove_file(self.root.join(directory).join(WORK));
        }
    }

    /// Removes an unpacked package, unless a host uses it. First it loses its name, so that no process finds half of it.
    fn discard(&self, directory: &Path) -> Result<()> {
        if !directory.exists() {
            return Ok(());
        }
        let index = open(&directory.join(INDEX));
        if index.as_ref().is_ok_and(|file| file.try_lock().is_err()) {
            return Ok(());
        }
        let aside =
            self.root.join("store").join(format!("{WORK}{}", directory.file_name().unwrap_or_default().display()));
        fs::rename(directory, &aside).map_err(io("remove", directory))?;
        fs::remove_dir_all(&aside).map_err(io("remove", &aside))
    }

    /// Refuses a directory that another user could write to.
    fn check(&self) -> Result<()> {
        let exposed = |reason: String| PackageError::Exposed { path: self.root.clone(), reason };
        let found = fs::metadata(&self.root).map_err(io("inspect", &self.root))?;
        if let Some(reason) = private::exposure(&found) {
            return Err(exposed(reason.to_owned()));
        }
        trust::check(&self.root, Secrecy::Public).map(drop).map_err(|distrust| exposed(distrust.to_string()))
    }

    /// Replaces a small file atomically. The caller holds the lock.
    fn replace(&self, path: &Path, contents: &[u8]) -> Result<()> {
        let (directory, name) = (path.parent().unwrap_or(&self.root), path.file_name().unwrap_or_default());
        let directory = File::open(directory);
        directory.and_then(|it| private::replace_file(it, name, WORK, contents)).map_err(io("write", path))
    }

    fn is_known(&self, key: &PublicKey) -> bool {
        self.key_path(key).is_file()
    }

    fn key_path(&self, key: &PublicKey) -> PathBuf {
        self.root.join("keys").join(format!("{}.pem", key.fingerprint()))
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.root.join("installed").join(format!("{name}.json"))
    }

    fn package_path(&self, digest: &str) -> PathBuf {
        self.root.join("store").join(digest)
    }
}

/// Refuses a package with another key than that of the installed version.
fn check_key(current: Option<&Record>, key: &str, change: KeyChange) -> Result<()> {
    match current {
        Some(record) if record.key != key && change == KeyChange::Refuse => Err(PackageError::OtherKey {
            name: record.name.clone(),
            installed: record.key.clone(),
            found: key.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Returns true if a text can be the name of a plugin, and so of a file.
fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
}

fn nofollow() -> i32 {
    OFlags::NOFOLLOW.bits().cast_signed()
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nofollow()).open(path)
}

/// Reads a file of at most `max` bytes.
fn bounded(file: &File, max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max { Err(ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

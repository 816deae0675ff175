//! Lists and removal of images.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::add::LAYER_RECORD;
use super::error::{Result, StoreError, io};
use super::files::{BLOBS, Files, IMAGES, Kind, LAYERS, Lock, NAMES, Temporary, open_nofollow, read_record};
use super::record::{ImageRecord, LayerRecord, NameRecord, time};
use super::resolve::try_lock;
use super::{ImageConfig, ImageStore, LayerInfo, Reference};
use crate::layer::stream::Sha;
use crate::layer::{Dropped, LayerError};

/// An image in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Digest of its manifest.
    pub manifest: Sha,
    /// Its names.
    pub names: Vec<Reference>,
    /// Space of its files, packed and unpacked, in bytes. Other images may share them.
    pub bytes: u64,
    /// Time at which it was added.
    pub stored: SystemTime,
    /// Time of its last use.
    pub used: SystemTime,
    /// True if a sandbox uses it now.
    pub in_use: bool,
}

/// An image in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// The same as in the list.
    pub listed: Listed,
    /// Digest of its configuration, which is the id that container engines show.
    pub config: Sha,
    /// Its settings.
    pub settings: ImageConfig,
    /// Its layers, the lowest first.
    pub layers: Vec<LayerInfo>,
    /// Counts of what was not kept of its files. `None` if an earlier build unpacked a layer and did not count.
    pub dropped: Option<Dropped>,
}

/// The images that [`ImageStore::prune`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneOptions {
    /// Remove images that no sandbox used for this time, also named ones. `None` removes only images without a name.
    pub unused_for: Option<Duration>,
}

/// The result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that were removed.
    pub names: Vec<Reference>,
    /// Digests of the manifests of images that were removed.
    pub images: Vec<Sha>,
    /// Bytes that were freed.
    pub freed: u64,
    /// True if files that no image has remain, because another process adds an image. The next removal frees them.
    pub is_deferred: bool,
}

impl ImageStore {
    /// Returns all images, sorted by their names.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut names = self.names()?;
        let mut all = Vec::new();
        for (path, record) in self.images()? {
            let names = names.remove(&record.manifest).unwrap_or_default();
            all.push(self.listed(&path, &record, names)?);
        }
        all.sort_by_cached_key(|listed| (listed.names.first().map(ToString::to_string), listed.manifest.clone()));
        Ok(all)
    }

    /// Returns details of an image. Accepts the same names as [`Self::resolve`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::resolve`].
    pub fn inspect(&self, name: &str) -> Result<Inspected> {
        let digest = self.find(name)?;
        let path = self.files.image(&digest);
        let missing = || StoreError::NotFound { name: name.to_owned() };
        let record: ImageRecord = read_record(&path)?.ok_or_else(missing)?;
        let names = self.names()?.remove(&digest).unwrap_or_default();
        let listed = self.listed(&path, &record, names)?;
        let dropped = self.dropped(&record.layers);
        Ok(Inspected { listed, config: record.config, settings: record.settings, layers: record.layers, dropped })
    }

    /// Returns the counts of what was not kept of these layers, or `None` if a layer has none.
    pub(super) fn dropped(&self, layers: &[LayerInfo]) -> Option<Dropped> {
        let mut all = Dropped::default();
        for layer in layers {
            let path = self.files.layer(&layer.contents).join(LAYER_RECORD);
            let record: LayerRecord = read_record(&path).ok().flatten()?;
            all.add(record.dropped?);
        }
        Some(all)
    }

    /// Returns the space that the store takes, in bytes.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn size(&self) -> Result<u64> {
        self.used()
    }

    /// Removes a name, and its image unless it has others. A digest removes the image with all its names.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`], and those of [`Self::resolve`].
    pub fn remove(&self, name: &str) -> Result<Removed> {
        let lock = self.files.lock()?;
        let digest = self.find(name)?;
        let all = self.names()?.remove(&digest).unwrap_or_default();
        let one = name.parse::<Reference>().ok().filter(|name| all.contains(name));
        let mut removed = Removed::default();
        match one {
            Some(one) if all.len() > 1 => {
                self.remove_name(&one)?;
                removed.names.push(one);
                return Ok(removed);
            }
            _ => self.remove_image(&digest, all, name, &mut removed)?,
        }
        self.free(lock, removed)
    }

    /// Removes images without a name, those that were not used for some time, and files that no image has. Images that
    /// a sandbox uses stay.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn prune(&self, options: PruneOptions) -> Result<Removed> {
        let lock = self.files.lock()?;
        let mut names = self.names()?;
        let mut removed = Removed::default();
        for (path, record) in self.images()? {
            let named = names.remove(&record.manifest).unwrap_or_default();
            let is_old = options.unused_for.is_some_and(|limit| used(&path).elapsed().is_ok_and(|age| age >= limit));
            if !named.is_empty() && !is_old {
                continue;
            }
            match self.remove_image(&record.manifest, named, record.manifest.digits(), &mut removed) {
                Ok(()) | Err(StoreError::InUse { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Names of images that do not exist.
        for name in names.into_values().flatten() {
            self.remove_name(&name)?;
            removed.names.push(name);
        }
        self.free(lock, removed)
    }

    fn free(&self, lock: Lock, mut removed: Removed) -> Result<Removed> {
        let collected = self.collect(&lock)?;
        drop(lock);
        removed.freed = collected.bytes;
        removed.is_deferred = collected.is_deferred;
        // Its directories are removed here, without the lock.
        drop(collected);
        Ok(removed)
    }

    fn remove_image(&self, digest: &Sha, names: Vec<Reference>, name: &str, removed: &mut Removed) -> Result<()> {
        let path = self.files.image(digest);
        let file = open_nofollow(&path).map_err(io("open", &path))?;
        if !try_lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io("lock", &path))? {
            return Err(StoreError::InUse { name: name.to_owned() });
        }
        for name in names {
            self.remove_name(&name)?;
            removed.names.push(name);
        }
        fs::remove_file(&path).map_err(io("remove", &path))?;
        removed.images.push(digest.clone());
        Ok(())
    }

    fn remove_name(&self, name: &Reference) -> Result<()> {
        let path = self.files.name(&name.canonical());
        fs::remove_file(&path).map_err(io("remove", path))
    }

    /// Removes files and layers that no image has, unless another process adds an image.
    pub(super) fn collect(&self, lock: &Lock) -> Result<Collected> {
        let mut collected = Collected::default();
        let (mut blobs, mut layers) = (BTreeSet::new(), BTreeSet::new());
        for (_, record) in self.images()? {
            blobs.extend([record.manifest, record.config]);
            for layer in record.layers {
                blobs.insert(layer.blob);
                layers.insert(layer.contents);
            }
        }
        let unused = |paths: Vec<PathBuf>, used: &BTreeSet<Sha>| -> Vec<PathBuf> {
            paths.into_iter().filter(|path| digest(path).is_none_or(|digest| !used.contains(&digest))).collect()
        };
        let blobs = unused(self.files.list(BLOBS)?, &blobs);
        let layers = unused(self.files.list(LAYERS)?, &layers);
        if blobs.is_empty() && layers.is_empty() {
            return Ok(collected);
        }
        let Some(_alone) = self.files.exclude_writers()? else {
            collected.is_deferred = true;
            return Ok(collected);
        };
        for path in blobs {
            collected.bytes += fs::symlink_metadata(&path).map_or(0, |found| found.len());
            fs::remove_file(&path).map_err(io("remove", path))?;
        }
        for path in layers {
            let record: Option<LayerRecord> = read_record(&path.join(LAYER_RECORD)).ok().flatten();
            collected.bytes += record.map_or(0, |record| record.bytes);
            collected.layers.push(self.files.discard(lock, &path)?);
        }
        Ok(collected)
    }

    fn listed(&self, path: &Path, record: &ImageRecord, names: Vec<Reference>) -> Result<Listed> {
        let mut bytes = record.documents;
        for layer in &record.layers {
            let found: Option<LayerRecord> = read_record(&self.files.layer(&layer.contents).join(LAYER_RECORD))?;
            bytes = bytes.saturating_add(layer.size).saturating_add(found.map_or(0, |found| found.bytes));
        }
        Ok(Listed {
            manifest: record.manifest.clone(),
            names,
            bytes,
            stored: time(record.stored),
            used: used(path),
            in_use: is_locked(path),
        })
    }

    /// Returns all images with the paths of their records.
    pub(super) fn images(&self) -> Result<Vec<(PathBuf, ImageRecord)>> {
        let mut all = Vec::new();
        for path in self.files.list(IMAGES)? {
            // Another process may remove it meanwhile.
            if let Some(record) = read_record(&path)? {
                all.push((path, record));
            }
        }
        Ok(all)
    }

    /// Returns the names of each image.
    fn names(&self) -> Result<BTreeMap<Sha, Vec<Reference>>> {
        let mut all = BTreeMap::<Sha, Vec<Reference>>::new();
        for path in self.files.list(NAMES)? {
            if let Some(record) = read_record::<NameRecord>(&path)? {
                all.entry(record.manifest).or_default().push(record.name.parse()?);
            }
        }
        all.values_mut().for_each(|names| names.sort_by_key(ToString::to_string));
        Ok(all)
    }
}

/// Files that were removed from the store.
#[derive(Debug, Default)]
pub(super) struct Collected {
    bytes: u64,
    is_deferred: bool,
    /// Directories that are removed when this is dropped.
    layers: Vec<(Temporary, PathBuf)>,
}

impl Files {
    /// Moves an unpacked layer into a temporary directory, which is removed when it is dropped.
    fn discard(&self, _lock: &Lock, path: &Path) -> Result<(Temporary, PathBuf)> {
        let temporary = self.temporary_locked(Kind::Directory)?;
        let into = temporary.path.join("layer");
        fs::rename(path, &into).map_err(io("remove", path))?;
        Ok((temporary, into))
    }

    /// Returns the paths in a directory of the store, in order.
    pub(super) fn list(&self, name: &str) -> Result<Vec<PathBuf>> {
        let directory = self.root.join(name);
        let entries = fs::read_dir(&directory).map_err(io("read", &directory))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>();
        let mut paths = paths.map_err(io("read", &directory))?;
        paths.sort();
        Ok(paths)
    }
}

fn digest(path: &Path) -> Option<Sha> {
    Sha::parse(&format!("sha256:{}", path.file_name()?.to_str()?)).ok()
}

fn used(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).and_then(|found| found.modified()).unwrap_or_else(|_| SystemTime::now())
}

/// Records a use. On a file system without times, an image may be pruned too early.
pub(super) fn mark_used(path: &Path) {
    let _ = open_nofollow(path).and_then(|file: File| file.set_modified(SystemTime::now()));
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = open_nofollow(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

impl From<StoreError> for std::io::Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Layer(LayerError::Io { source, .. }) => source,
            other => Self::other(other),
        }
    }
}

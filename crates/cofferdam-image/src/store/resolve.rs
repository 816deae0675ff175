//! Use of an image by a sandbox.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::add::{LAYER_FILES, LAYER_RECORD};
use super::error::{Result, StoreError, io};
use super::files::{IMAGES, open_nofollow, read_record};
use super::manage::mark_used;
use super::record::{ImageConfig, ImageRecord, LayerRecord, NameRecord};
use super::{ImageStore, Reference};
use crate::layer::stream::Sha;

/// Time for which a list may have a lock.
const LISTING_TIME: Duration = Duration::from_millis(200);
/// Minimum number of digits of a shortened digest.
const MIN_DIGITS: usize = 6;

/// An image that a sandbox uses.
#[derive(Debug)]
pub struct Resolved {
    /// Digest of its manifest.
    pub digest: Sha,
    /// Its settings.
    pub config: ImageConfig,
    /// Directories of its layers, the lowest first. A mount lists them in the opposite order (`lowerdir=TOP:…:BOTTOM`)
    /// and has the option `userxattr`.
    pub layers: Vec<PathBuf>,
    /// Keeps the image from being removed.
    pub lease: Lease,
}

/// A lock that keeps an image from being removed while it, or a copy of its descriptor, is open.
#[derive(Debug)]
pub struct Lease(File);

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ImageStore {
    /// Finds an image by its name, its digest (`sha256:…`), or the first digits of its digest, and keeps it from being
    /// removed.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`], [`StoreError::InvalidReference`], [`StoreError::Ambiguous`], [`StoreError::Damaged`], and
    /// those of the operating system.
    pub fn resolve(&self, name: &str) -> Result<Resolved> {
        let digest = self.find(name)?;
        let path = self.files.image(&digest);
        let missing = || StoreError::NotFound { name: name.to_owned() };
        let file = open_nofollow(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing(),
            _ => io("open", &path)(error),
        })?;
        lock_shared(&file, name, &path)?;
        // It may have been removed before it was locked.
        if file.metadata().map_err(io("inspect", &path))?.nlink() == 0 {
            return Err(missing());
        }
        let record: ImageRecord = read_record(&path)?.ok_or_else(missing)?;
        let mut layers = Vec::with_capacity(record.layers.len());
        for layer in &record.layers {
            let directory = self.files.layer(&layer.contents);
            let found: Option<LayerRecord> = read_record(&directory.join(LAYER_RECORD))?;
            let Some(found) = found else {
                let what = format!("its layer {} is not unpacked", layer.contents);
                return Err(StoreError::Damaged { name: name.to_owned(), what });
            };
            if found.opaque {
                layers.clear();
            }
            // A repeated layer hides what it had below, and overlayfs accepts each directory once.
            let path = directory.join(LAYER_FILES);
            layers.retain(|lower| *lower != path);
            layers.push(path);
        }
        mark_used(&path);
        Ok(Resolved { digest, config: record.settings, layers, lease: Lease(file) })
    }

    /// Returns true if the store has an image with this name. Accepts the same names as [`Self::resolve`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::resolve`], except [`StoreError::NotFound`].
    pub fn contains(&self, name: &str) -> Result<bool> {
        match self.find(name) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the digest of an image's manifest.
    pub(super) fn find(&self, name: &str) -> Result<Sha> {
        let missing = || StoreError::NotFound { name: name.escape_debug().to_string() };
        let digits = name.strip_prefix("sha256:").unwrap_or(name);
        let is_digits = digits.len() >= MIN_DIGITS
            && digits.len() <= 64
            && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_digits && name.len() != digits.len() {
            return self.find_digits(digits, name)?.ok_or_else(missing);
        }
        let reference = match name.parse::<Reference>() {
            Ok(reference) => reference,
            // 64 digits alone are no name.
            Err(_) if is_digits => return self.find_digits(digits, name)?.ok_or_else(missing),
            Err(error) => return Err(error),
        };
        let record: Option<NameRecord> = read_record(&self.files.name(&reference.canonical()))?;
        match (record, reference.digest()) {
            (Some(record), _) => Ok(record.manifest),
            // The digest decides, whatever the name is.
            (None, Some(digest)) => match fs::symlink_metadata(self.files.image(digest)) {
                Ok(_) => Ok(digest.clone()),
                Err(_) => Err(missing()),
            },
            (None, None) if is_digits => self.find_digits(digits, name)?.ok_or_else(missing),
            (None, None) => Err(missing()),
        }
    }

    /// Finds an image by the first digits of the digest of its manifest, or else of its configuration, which is the id
    /// that container engines show.
    fn find_digits(&self, digits: &str, name: &str) -> Result<Option<Sha>> {
        let mut found = Vec::new();
        for path in self.files.list(IMAGES)? {
            let Some(record) = read_record::<ImageRecord>(&path)? else { continue };
            if record.manifest.digits().starts_with(digits) || record.config.digits().starts_with(digits) {
                found.push(record.manifest);
            }
        }
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(StoreError::Ambiguous { name: name.to_owned() }),
        }
    }
}

fn lock_shared(file: &File, name: &str, path: &std::path::Path) -> Result<()> {
    match try_lock(file, FlockOperation::NonBlockingLockShared) {
        Ok(true) => Ok(()),
        // Only a removal has the exclusive lock for longer.
        Ok(false) => Err(StoreError::NotFound { name: name.to_owned() }),
        Err(error) => Err(io("lock", path)(error)),
    }
}

/// Locks the record of an image, unless it stays locked. A list has the exclusive lock for a moment, to find out whether
/// an image is in use.
pub(super) fn try_lock(file: &File, operation: FlockOperation) -> std::io::Result<bool> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if begun.elapsed() > LISTING_TIME => return Ok(false),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
}

//! The directory of a volume that is being created or removed.
//!
//! ```text
//! .tmp-ID/ (locked by its process) --complete, synced--> NAME/ --remove--> .tmp-ID/ --> removed
//! ```
//!
//! A directory gets the name of its volume under the lock of the store. The directory of a process that was killed
//! keeps its temporary name and has no lock, so the next process that locks the store removes it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::bounds::MAX_VOLUMES;
use crate::error::{Result, VolumeError, io};
use crate::lock::{self, Kind};
use crate::name::Name;
use crate::record::Record;
use crate::store::{Locked, Store};
use crate::{files, remove};

pub(crate) const TEMPORARY: &str = ".tmp-";

/// A directory with a temporary name. It is removed unless it becomes a volume.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    store: &'a Store,
    name: String,
    pub directory: OwnedFd,
    _lock: File,
    is_done: bool,
}

impl<'a> Pending<'a> {
    /// Creates a directory.
    pub fn new(store: &'a Store) -> Result<Self> {
        let _locked = store.lock()?;
        let name = temporary_name(store)?;
        let failed = || io("create a volume in", store.path());
        let directory =
            files::create_directory(store.directory(), &name, 0o700).map_err(io("create a volume in", store.path()))?;
        let file = files::open(&directory, files::LOCK, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
        let created = file.and_then(|file| lock::try_lock(&file, Kind::Exclusive).map(|_| file));
        match created {
            Ok(lock) => Ok(Self { store, name, directory, _lock: lock, is_done: false }),
            Err(error) => {
                // Under the lock of the store, no other process has it. Otherwise, the next process removes it.
                let _ = files::unlink(&directory, files::LOCK);
                let _ = rustix::fs::unlinkat(store.directory(), &name, AtFlags::REMOVEDIR);
                Err(failed()(error))
            }
        }
    }

    /// Takes the name of a volume away, to remove it. The caller has the volume's exclusive lock.
    pub fn of_volume(
        store: &'a Store,
        _locked: &Locked,
        volume: &Name,
        directory: OwnedFd,
        lock: File,
    ) -> Result<Self> {
        let name = temporary_name(store)?;
        rustix::fs::renameat_with(store.directory(), volume.as_str(), store.directory(), &name, RenameFlags::NOREPLACE)
            .and_then(|()| rustix::fs::fsync(store.directory()))
            .map_err(io("remove a volume from", store.path()))?;
        Ok(Self { store, name, directory, _lock: lock, is_done: false })
    }

    /// Gives the directory the name of its volume, after everything is on the disk.
    pub fn commit(mut self, volume: &Name, record: &Record) -> Result<()> {
        let failed = |error: std::io::Error| io("create a volume in", self.store.path())(error);
        files::replace(&self.directory, files::RECORD, &record.encode()).map_err(failed)?;
        let locked = self.store.lock()?;
        if self.store.names()?.len() >= MAX_VOLUMES {
            return Err(VolumeError::TooMany { max: MAX_VOLUMES });
        }
        let store = self.store.directory();
        match rustix::fs::renameat_with(store, &self.name, store, volume.as_str(), RenameFlags::NOREPLACE) {
            Ok(()) => self.is_done = true,
            Err(Errno::EXIST) => return Err(VolumeError::Exists { name: volume.to_string() }),
            Err(error) => return Err(failed(error.into())),
        }
        rustix::fs::fsync(store).map_err(|error| failed(error.into()))?;
        drop(locked);
        Ok(())
    }

    /// Removes the directory.
    pub fn discard(mut self) -> Result<()> {
        self.is_done = true;
        discard(self.store, &self.name, self.directory.as_fd())
            .map_err(io("remove", self.store.path().join(&self.name)))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            // The next process that locks the store tries again.
            let _ = discard(self.store, &self.name, self.directory.as_fd());
        }
    }
}

/// Removes the directories of killed processes. The caller has the lock of the store.
pub(crate) fn sweep(store: &Store) -> Result<()> {
    for name in store.all_names()? {
        let Some(name) = name.to_str().filter(|name| name.starts_with(TEMPORARY)) else { continue };
        let Ok(directory) = files::directory(store.directory(), name) else { continue };
        let is_abandoned = match files::open(&directory, files::LOCK, OFlags::RDWR) {
            Ok(file) => lock::try_lock(&file, Kind::Exclusive).unwrap_or(false),
            // The lock is created under the lock of the store, and removed last.
            Err(_) => true,
        };
        if is_abandoned {
            // A directory that cannot be removed does not prevent the use of the store.
            let _ = discard(store, name, directory.as_fd());
        }
    }
    Ok(())
}

fn discard(store: &Store, name: &str, directory: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
    remove::clear(directory, files::LOCK)?;
    files::unlink(directory, files::LOCK)?;
    Ok(rustix::fs::unlinkat(store.directory(), name, AtFlags::REMOVEDIR)?)
}

fn temporary_name(store: &Store) -> Result<String> {
    let random = cofferdam_util::hex::random(8).map_err(io("create a volume in", store.path()))?;
    Ok(format!("{TEMPORARY}{random}"))
}

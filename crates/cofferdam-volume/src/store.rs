//! The store: one private directory with one directory for each volume.
//!
//! ```text
//! .lock             held during changes of names and of users
//! .tmp-ID/          a volume that is being created or removed
//! NAME/
//!   volume.json     size, creation time
//!   lock            held by its users, with the list of them
//!   disk.ext4       the file system of a volume with a size
//!   files/          the files of a volume without a size
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cofferdam_linux::named;
use cofferdam_tree::ext4::{self, Writable};
use cofferdam_util::private;
use rustix::fs::{Dir, OFlags};

use crate::bounds::{MAX_NAMES, MAX_VOLUMES};
use crate::error::{Result, VolumeError, io};
use crate::holders::{self, Holder};
use crate::lock::{self, Kind};
use crate::name::Name;
use crate::pending::{self, Pending};
use crate::record::{self, Record};
use crate::{files, usage};

/// User and group of the files in a file system: those of commands in a VM. Other levels map owners.
const OWNER: (u32, u32) = (1000, 1000);
/// Bytes of a volume for each file that it can have, at least.
const BYTES_A_FILE: u64 = 16 << 10;
const STORE_LOCK: &str = ".lock";

/// A store of volumes that several processes may use.
#[derive(Debug, Clone)]
pub struct Store {
    directory: Arc<OwnedFd>,
    path: PathBuf,
}

/// The properties of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Name.
    pub name: Name,
    /// Maximum size of its file system, in bytes. `None` means a directory without a limit.
    pub size: Option<u64>,
    /// Space on the host, in bytes. `None` if it could not be determined, as for a directory with too many files.
    pub used: Option<u64>,
    /// Creation time.
    pub created: SystemTime,
    /// Beginning or end of the last use.
    pub last_use: Option<SystemTime>,
    /// True if a guest may have written the file system directly.
    pub was_disk: bool,
    /// Current users.
    pub holders: Vec<Holder>,
}

/// The lock of a store.
#[derive(Debug)]
pub(crate) struct Locked {
    _file: File,
}

/// The files of a volume.
#[derive(Debug)]
pub(crate) struct Found {
    pub directory: OwnedFd,
    pub record: Record,
    pub lock: File,
}

impl Store {
    /// Opens a store and creates its directory if it is missing.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Exposed`] if other users can change the directory, and those of the operating system.
    pub fn open(path: &Path) -> Result<Self> {
        private::create_directory(path).map_err(io("create", path))?;
        let found = named::Directory::open(path).map_err(io("open", path))?;
        let real = found.path().to_owned();
        let handle = File::from(OwnedFd::from(found));
        if let Some(reason) = private::exposure(&handle.metadata().map_err(io("inspect", path))?) {
            return Err(VolumeError::Exposed { path: path.to_owned(), reason });
        }
        Ok(Self { directory: Arc::new(handle.into()), path: real })
    }

    /// Creates an empty volume with a maximum size in bytes, or without a limit.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Exists`], [`VolumeError::InvalidSize`], [`VolumeError::TooMany`], those of creating a file
    /// system, and those of the operating system.
    pub fn create(&self, name: &Name, size: Option<u64>) -> Result<()> {
        self.check_new(name, size)?;
        let pending = Pending::new(self)?;
        match size {
            Some(size) => make_disk(&pending.directory, &self.path, size, None)?,
            None => {
                let created = files::create_directory(&pending.directory, files::FILES, 0o755);
                created.map(drop).map_err(io("create a volume in", &self.path))?;
            }
        }
        pending.commit(name, &Record::new(size))
    }

    /// Returns the names of all volumes, in order.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn names(&self) -> Result<Vec<Name>> {
        let names = self.all_names()?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    /// Returns the sizes of all volumes, in the order of names, `None` for those without a limit and damaged ones.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn sizes(&self) -> Result<Vec<Option<u64>>> {
        let size = |name: Name| self.find(&name).ok().and_then(|found| found.record.size);
        Ok(self.names()?.into_iter().map(size).collect())
    }

    /// Returns the properties of all volumes, in the order of names, each with the error if it is damaged.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn list(&self) -> Result<Vec<(Name, Result<Volume>)>> {
        let each = |name: Name| {
            let volume = self.inspect(&name);
            (name, volume)
        };
        let all = self.names()?.into_iter().map(each);
        // Another process may remove one meanwhile.
        Ok(all.filter(|(_, volume)| !matches!(volume, Err(VolumeError::NotFound { .. }))).collect())
    }

    /// Returns the properties of a volume.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NotFound`], [`VolumeError::Damaged`], and those of the operating system.
    pub fn inspect(&self, name: &Name) -> Result<Volume> {
        let Found { directory, record, lock } = self.find(name)?;
        let failed = || io("inspect", self.path.join(name.as_str()));
        let used = match record.size {
            Some(_) => {
                let disk = files::open(&directory, files::DISK, OFlags::RDONLY).map_err(failed())?;
                Some(usage::of_disk(&disk).map_err(io("inspect", &self.path))?)
            }
            None => files::directory(&directory, files::FILES).ok().and_then(|tree| usage::of_tree(tree.as_fd())),
        };
        let last_use = lock.metadata().and_then(|found| found.modified()).ok();
        Ok(Volume {
            name: name.clone(),
            size: record.size,
            used,
            created: record.created(),
            last_use,
            was_disk: record.was_disk,
            holders: self.holders(&lock).map_err(io("inspect", &self.path))?,
        })
    }

    /// Removes a volume.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NotFound`], [`VolumeError::InUse`], and those of the operating system. After an error of the
    /// operating system, the volume may be gone, and the next change of the store removes the rest of it.
    pub fn remove(&self, name: &Name) -> Result<()> {
        let locked = self.lock()?;
        // A damaged volume can be removed, too.
        let directory = self.volume_directory(name)?;
        let failed = || io("open", self.path.join(name.as_str()));
        let lock = files::open(&directory, files::LOCK, OFlags::RDWR | OFlags::CREATE).map_err(failed())?;
        if !lock::try_lock(&lock, Kind::Exclusive).map_err(io("lock", &self.path))? {
            return Err(self.in_use(name, &lock));
        }
        let pending = Pending::of_volume(self, &locked, name, directory, lock)?;
        drop(locked);
        pending.discard()
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn all_names(&self) -> Result<Vec<OsString>> {
        let failed = |error: std::io::Error| io("read", &self.path)(error);
        let mut names = Vec::new();
        for entry in Dir::read_from(self.directory()).map_err(|error| failed(error.into()))? {
            let name = entry.map_err(|error| failed(error.into()))?.file_name().to_bytes().to_vec();
            if names.len() >= MAX_NAMES {
                return Err(failed(std::io::Error::other("it has too many files")));
            }
            names.push(OsString::from_vec(name));
        }
        names.sort();
        Ok(names)
    }

    /// Waits for the lock of the store, and removes what killed processes left.
    pub(crate) fn lock(&self) -> Result<Locked> {
        let file = files::open(self.directory(), STORE_LOCK, OFlags::RDWR | OFlags::CREATE);
        let file = file.map_err(io("lock", &self.path))?;
        lock::lock(&file).map_err(io("lock", &self.path))?;
        pending::sweep(self)?;
        Ok(Locked { _file: file })
    }

    /// Opens the files of a volume.
    pub(crate) fn find(&self, name: &Name) -> Result<Found> {
        let directory = self.volume_directory(name)?;
        let damaged = |reason: &str| VolumeError::Damaged { name: name.to_string(), reason: reason.to_owned() };
        let bytes = files::read_small(&directory, files::RECORD).map_err(|_| damaged("it has no record"))?;
        let record = Record::parse(&bytes).map_err(damaged)?;
        let lock = files::open(&directory, files::LOCK, OFlags::RDWR).map_err(|_| damaged("it has no lock"))?;
        Ok(Found { directory, record, lock })
    }

    /// Refuses a name that is taken, and an invalid size.
    pub(crate) fn check_new(&self, name: &Name, size: Option<u64>) -> Result<()> {
        size.map_or(Ok(()), record::check_size)?;
        match self.volume_directory(name) {
            Err(VolumeError::NotFound { .. }) if self.names()?.len() >= MAX_VOLUMES => {
                Err(VolumeError::TooMany { max: MAX_VOLUMES })
            }
            Err(VolumeError::NotFound { .. }) => Ok(()),
            Ok(_) => Err(VolumeError::Exists { name: name.to_string() }),
            Err(error) => Err(error),
        }
    }

    /// Returns the error about the users of a volume.
    pub(crate) fn in_use(&self, name: &Name, lock: &File) -> VolumeError {
        let holders = holders::read(lock).unwrap_or_default();
        VolumeError::InUse { name: name.to_string(), by: holders::describe(&holders) }
    }

    fn volume_directory(&self, name: &Name) -> Result<OwnedFd> {
        files::directory(self.directory(), name.as_str()).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => VolumeError::NotFound { name: name.to_string() },
            _ => io("open", self.path.join(name.as_str()))(error),
        })
    }

    /// Returns the users of a volume, of which there are none if it can be locked.
    fn holders(&self, lock: &File) -> std::io::Result<Vec<Holder>> {
        // A lock of this descriptor would disturb a process that opens the volume now, so the list must do.
        holders::read(lock)
    }
}

/// Creates the file system of a volume, with the files of a directory.
pub(crate) fn make_disk(directory: &OwnedFd, shown: &Path, size: u64, from: Option<(&Path, u64)>) -> Result<()> {
    let failed = || io("create a disk in", shown);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let disk = files::open(directory, files::DISK, flags).map_err(failed())?;
    disk.set_len(size).map_err(failed())?;
    let files = (size / BYTES_A_FILE).max(from.map_or(0, |(_, files)| files));
    let from = from.map(|(path, _)| path);
    ext4::make_writable(&disk, &Writable { files, owner: OWNER, from })?;
    disk.sync_all().map_err(failed())
}

//! Use of a volume by a sandbox or a command.
//!
//! The lock of a volume is released when its holder ends in any way. A sandbox may end a moment later than its
//! supervisor, and its file system with it. So a file system is used only when no other process has its file open.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_linux::loop_device::{self, Access};
use rustix::fs::OFlags;

use crate::disk::Superblock;
use crate::error::{Result, VolumeError, io};
use crate::holders::{self, Holder};
use crate::lock::{self, Kind};
use crate::name::Name;
use crate::record::Record;
use crate::store::{Found, Store};
use crate::{files, rebuild};

/// Time to wait for the end of a sandbox whose supervisor has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The way to the files of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    /// The host's kernel mounts the file system. Guests see the mount.
    Mount,
    /// A VM gets the file system as a disk, and its guest may write anything to it.
    Disk,
    /// A reader of this crate, which accepts hostile file systems.
    Export,
}

/// A request to use a volume.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// One writer has the volume for itself. Any number of readers share it.
    pub access: Access,
    /// The way to its files.
    pub through: Through,
    /// The purpose, such as the id of a sandbox, for other users of the volume.
    pub purpose: &'a str,
}

/// The files of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// A directory without a size limit.
    Directory(PathBuf),
    /// A file with an ext4 file system.
    Disk(PathBuf),
}

/// A volume in use. Others cannot use it until this is closed or dropped.
#[derive(Debug)]
pub struct OpenVolume {
    store: Store,
    name: Name,
    found: Found,
    holder: Holder,
    contents: Contents,
    mounted: Option<OwnedFd>,
    /// Times of the last changes of a file system that no guest had written directly before this use.
    before: Option<Changed>,
    is_closed: bool,
}

/// Times of the last changes of a file's contents and of its properties.
type Changed = (i64, i64, i64, i64);

impl Store {
    /// Locks a volume and prepares it for its use. Waits up to ten seconds for the end of a sandbox whose supervisor
    /// has ended.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NotFound`], [`VolumeError::InUse`], [`VolumeError::Unclean`] for a reader that cannot write the
    /// journal, [`VolumeError::Damaged`], and those of the operating system.
    pub fn open_volume(&self, name: &Name, request: &Request<'_>) -> Result<OpenVolume> {
        let locked = self.lock()?;
        let found = self.find(name)?;
        let failed = || io("lock", self.path().join(name.as_str()));
        let kind = self.kind_of_lock(name, &found, request)?;
        if !lock::try_lock(&found.lock, kind).map_err(failed())? {
            return Err(self.in_use(name, &found.lock));
        }
        let holder = Holder::new(request.access, request.purpose);
        holders::add(&found.lock, &holder).map_err(failed())?;
        drop(locked);
        let path = self.path().join(name.as_str());
        let contents = match found.record.size {
            Some(_) => Contents::Disk(path.join(files::DISK)),
            None => Contents::Directory(path.join(files::FILES)),
        };
        let mut volume = OpenVolume {
            store: self.clone(),
            name: name.clone(),
            found,
            holder,
            contents,
            mounted: None,
            before: None,
            is_closed: false,
        };
        volume.prepare(request)?;
        if kind == Kind::Exclusive && request.access == Access::ReadOnly {
            let is_shared = lock::try_lock(&volume.found.lock, Kind::Shared).map_err(failed())?;
            if !is_shared {
                return Err(self.in_use(name, &volume.found.lock));
            }
        }
        Ok(volume)
    }

    /// Returns the kind of lock to begin with. A reader that has to change the file system first is alone meanwhile.
    fn kind_of_lock(&self, name: &Name, found: &Found, request: &Request<'_>) -> Result<Kind> {
        if request.access == Access::ReadWrite {
            return Ok(Kind::Exclusive);
        }
        let Some(size) = found.record.size else { return Ok(Kind::Shared) };
        let disk = open_disk(found, Access::ReadOnly).map_err(io("open", self.path().join(name.as_str())))?;
        let changes = request.through == Through::Mount
            && (found.record.was_disk
                || Superblock::read(&disk, size).map_err(|problem| problem.of(name))?.is_unclean());
        Ok(if changes { Kind::Exclusive } else { Kind::Shared })
    }
}

impl OpenVolume {
    /// Returns the files of the volume.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the name of the volume.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns a detached mount of the file system, for [`Through::Mount`], without set-uid bits and devices. Requires
    /// root.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Mount`], and those of the operating system.
    pub fn mount(&mut self) -> Result<OwnedFd> {
        let mounted = self.mount_now(self.holder.access)?;
        let copy = mounted.try_clone().map_err(self.failed("mount"))?;
        self.mounted = Some(mounted);
        Ok(copy)
    }

    /// Writes everything to the disk, and releases the volume. A VM that had its disk must have ended: if it never wrote
    /// to it, or was never started, the record says so again.
    ///
    /// # Errors
    ///
    /// Those of the operating system. The volume is released in any case.
    pub fn close(mut self) -> Result<()> {
        let unwritten = self.forget_unwritten();
        self.release().and(unwritten)
    }

    fn forget_unwritten(&mut self) -> Result<()> {
        let Some(before) = self.before.take() else { return Ok(()) };
        let disk = open_disk(&self.found, self.holder.access).map_err(self.failed("open"))?;
        let is_sole = loop_device::is_sole_user(&disk).map_err(self.failed("find out who uses"))?;
        drop(disk);
        if is_sole && self.changed()? == before {
            self.record(self.found.record.with_disk(false))?;
        }
        Ok(())
    }

    fn changed(&self) -> Result<Changed> {
        let disk = open_disk(&self.found, Access::ReadOnly).map_err(self.failed("open"))?;
        let found = disk.metadata().map_err(self.failed("inspect"))?;
        Ok((found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()))
    }

    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let written = if self.holder.access == Access::ReadWrite { self.write_out() } else { Ok(()) };
        self.mounted = None;
        let listed = self
            .store
            .lock()
            .and_then(|_locked| holders::remove(&self.found.lock, &self.holder).map_err(self.failed("release")));
        lock::unlock(&self.found.lock);
        written.and(listed)
    }

    fn write_out(&self) -> Result<()> {
        let failed = || self.failed("write");
        if let Some(mounted) = &self.mounted {
            let root = rustix::fs::openat(mounted, ".", OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
            root.and_then(|root| rustix::fs::syncfs(&root)).map_err(|error| failed()(error.into()))?;
        }
        match self.found.record.size {
            Some(_) => open_disk(&self.found, Access::ReadOnly).and_then(|disk| disk.sync_all()).map_err(failed()),
            None => {
                let tree = files::directory(&self.found.directory, files::FILES).map_err(failed())?;
                rustix::fs::syncfs(&tree).map_err(|error| failed()(error.into()))
            }
        }
    }

    /// Makes sure that nothing else uses the file system, and that its reader may read it.
    fn prepare(&mut self, request: &Request<'_>) -> Result<()> {
        let Some(size) = self.found.record.size else { return Ok(()) };
        let disk = open_disk(&self.found, request.access).map_err(self.failed("open"))?;
        self.wait_for_others(&disk)?;
        drop(disk);
        match request.through {
            Through::Export => Ok(()),
            Through::Disk => {
                if request.access == Access::ReadOnly {
                    return if self.superblock(size)?.is_unclean() { Err(self.unclean()) } else { Ok(()) };
                }
                if !self.found.record.was_disk {
                    self.before = Some(self.changed()?);
                    self.record(self.found.record.with_disk(true))?;
                }
                Ok(())
            }
            Through::Mount => {
                if self.found.record.was_disk {
                    rebuild::rebuild(&self.store, &self.name, &self.found, size)?;
                    self.found.record.was_disk = false;
                    return Ok(());
                }
                // A writer's mount writes the journal.
                if request.access == Access::ReadWrite || !self.superblock(size)?.is_unclean() {
                    return Ok(());
                }
                drop(self.mount_now(Access::ReadWrite)?);
                let disk = open_disk(&self.found, Access::ReadOnly).map_err(self.failed("open"))?;
                self.wait_for_others(&disk)
            }
        }
    }

    fn mount_now(&self, access: Access) -> Result<OwnedFd> {
        let disk = open_disk(&self.found, access).map_err(self.failed("open"))?;
        loop_device::mount_ext4(disk.as_fd(), access)
            .map_err(|source| VolumeError::Mount { name: self.name.to_string(), source })
    }

    fn superblock(&self, size: u64) -> Result<Superblock> {
        let disk = open_disk(&self.found, Access::ReadOnly).map_err(self.failed("open"))?;
        Superblock::read(&disk, size).map_err(|problem| problem.of(&self.name))
    }

    /// Waits until no other process writes to the file system, or, for a writer, uses it.
    fn wait_for_others(&self, disk: &File) -> Result<()> {
        let begun = Instant::now();
        loop {
            if loop_device::is_sole_user(disk).map_err(self.failed("find out who uses"))? {
                return Ok(());
            }
            if begun.elapsed() > EXIT_TIMEOUT {
                return Err(VolumeError::InUse {
                    name: self.name.to_string(),
                    by: "a sandbox whose supervisor has ended".to_owned(),
                });
            }
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
    }

    fn record(&mut self, record: Record) -> Result<()> {
        files::replace(&self.found.directory, files::RECORD, &record.encode()).map_err(self.failed("write"))?;
        self.found.record = record;
        Ok(())
    }

    fn unclean(&self) -> VolumeError {
        VolumeError::Unclean { name: self.name.to_string() }
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(std::io::Error) -> VolumeError {
        io(operation, self.path())
    }

    fn path(&self) -> &Path {
        match &self.contents {
            Contents::Directory(path) | Contents::Disk(path) => path,
        }
    }
}

impl AsFd for OpenVolume {
    /// Returns the descriptor that holds the lock. A process that has it keeps the lock.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.found.lock.as_fd()
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        // An owner that wants to know about errors closes the volume.
        let _ = self.release();
    }
}

fn open_disk(found: &Found, access: Access) -> std::io::Result<File> {
    let flags = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    files::open(&found.directory, files::DISK, flags)
}

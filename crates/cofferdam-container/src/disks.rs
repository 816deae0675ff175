//! Disks of mounts: the file system in a file, mounted for the engine until it has bound it into the container.
//!
//! ```text
//! file --loop device, owners mapped--> detached mount --attach--> /run/cofferdam-disks/NAME --bind--> container
//!                                                                      '--detach, after the create
//! ```
//!
//! The container's mount keeps the file system and the loop device, which end with it. A process that is killed during
//! a create leaves its mount on the host: the next one detaches it.

use std::ffi::CString;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_contract::{Access, Error, ErrorKind, Result};
use cofferdam_linux::{loop_device, mount, namespace};
use cofferdam_util::{private, sha256};
use rustix::fs::{Mode, OFlags};

use crate::labels::{Owner, OwnerState};

/// The directory of the mounts. Only root can enter it.
pub(crate) const DIRECTORY: &str = "/run/cofferdam-disks";
/// The owner of files on disks, as in VMs.
const DISK_OWNER: (u32, u32) = (1000, 1000);

/// Returns true if this process can mount disks for an engine on this host.
pub(crate) fn are_available() -> bool {
    rustix::process::geteuid().is_root() && loop_device::probe().is_ok()
}

/// Mounts the file system in an opened file. Its files appear as those of a sandbox's user.
pub(crate) fn mount_disk(file: impl AsFd, access: Access, user: (u32, u32), owner: &Owner) -> Result<MountPoint> {
    let access = match access {
        Access::ReadOnly => loop_device::Access::ReadOnly,
        Access::ReadWrite => loop_device::Access::ReadWrite,
    };
    let tree = loop_device::mount_ext4(file.as_fd(), access).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "create", format!("the disk of a mount cannot be used: {error}"))
            .with_remedy("run as root on a host with loop devices (`modprobe loop`), or mount a directory")
    })?;
    let failed = |step: &'static str| {
        move |error: io::Error| {
            Error::new(ErrorKind::Unavailable, "create", format!("cannot {step}")).with_source(error)
        }
    };
    show_owner_as(tree.as_fd(), DISK_OWNER, user).map_err(failed("map the owner of a disk"))?;
    MountPoint::attach(tree.as_fd(), owner).map_err(failed("attach a disk"))
}

/// Maps owners of a detached mount: files of `owner` appear as those of `user`.
pub(crate) fn show_owner_as(tree: BorrowedFd<'_>, owner: (u32, u32), user: (u32, u32)) -> io::Result<()> {
    let proc = rustix::fs::open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let users = namespace::with_ids(proc.as_fd(), owner, user)?;
    mount::map_owners(tree, users.as_fd())
}

/// A path of the host at which a file system is mounted for an engine. Dropping it detaches the mount.
#[derive(Debug)]
pub(crate) struct MountPoint {
    path: PathBuf,
}

impl MountPoint {
    /// Attaches a detached mount at a new path.
    pub(crate) fn attach(tree: BorrowedFd<'_>, owner: &Owner) -> io::Result<Self> {
        let point = Self::directory(owner)?;
        let target = rustix::fs::open(&point.path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        mount::attach_onto(tree, target.as_fd())?;
        Ok(point)
    }

    /// Creates an empty directory, which nothing is mounted on yet.
    fn directory(owner: &Owner) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let base = Path::new(DIRECTORY);
        private::create_directory(base)?;
        if !is_private(base) {
            return Err(io::Error::other(format!("{DIRECTORY} is not a directory that only root can enter")));
        }
        let path = base.join(format!("{}-{}", prefix(owner), COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// Returns the path of the mounted file system.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Returns true for a directory that only its owner, this user, can enter.
fn is_private(directory: &Path) -> bool {
    let is_closed =
        |found: Metadata| found.is_dir() && private::exposure(&found).is_none() && found.mode() & 0o077 == 0;
    directory.symlink_metadata().is_ok_and(is_closed)
}

/// Returns the start of the names of a process's mounts.
fn prefix(owner: &Owner) -> String {
    format!("{}-{}-{}", &sha256::of(&owner.host)[..16], owner.process, owner.start)
}

/// Detaches what is mounted at a path, and removes the directory. The next sweep retries what fails.
fn remove(path: &Path) {
    if let Ok(name) = CString::new(path.as_os_str().as_bytes()) {
        let _ = mount::detach(&name);
    }
    let _ = fs::remove_dir(path);
}

/// Detaches disks that killed processes of this host left mounted, so that others can use their files. A backend does
/// that when it connects to its engine.
pub fn sweep_disks() {
    if let Ok(current) = Owner::this() {
        sweep(&current);
    }
}

/// Removes the mounts of processes of this host that were killed.
pub(crate) fn sweep(current: &Owner) {
    if !rustix::process::geteuid().is_root() || !is_private(Path::new(DIRECTORY)) {
        return;
    }
    for entry in fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| is_dead(name, current)) {
            remove(&entry.path());
        }
    }
}

/// Returns true if a name was given by a process of this host that has ended.
fn is_dead(name: &str, current: &Owner) -> bool {
    let mut parts = name.split('-');
    let (Some(_), Some(process), Some(start)) = (parts.next(), parts.next(), parts.next()) else { return false };
    let (Ok(process), Ok(start)) = (process.parse(), start.parse()) else { return false };
    let owner = Owner { host: current.host.clone(), process, start };
    name.starts_with(&prefix(&owner)) && owner.state(&current.host) == OwnerState::Dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_enter_is_not_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o700, true), (0o755, false), (0o710, false), (0o722, false)] {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_private(directory.path()), expected, "{mode:o}");
        }
        assert!(!is_private(&directory.path().join("missing")));
    }

    #[test]
    fn only_mounts_of_dead_processes_of_this_host_are_swept() {
        let this = Owner::this().unwrap();
        assert!(!is_dead(&format!("{}-0", prefix(&this)), &this));
        let earlier = Owner { start: this.start + 1, ..this.clone() };
        assert!(is_dead(&format!("{}-0", prefix(&earlier)), &this), "another process had this id");
        let elsewhere = Owner { host: "another".to_owned(), ..earlier };
        for name in [format!("{}-0", prefix(&elsewhere)), "x".to_owned(), "a-b-c-d".to_owned(), String::new()] {
            assert!(!is_dead(&name, &this), "{name}");
        }
    }
}

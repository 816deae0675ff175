//! Mounts of the host and of memory, besides the workspace.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cofferdam_contract::{
    Access, DirectoryId, Error, ErrorKind, Mount, MountAccess, MountSource, Result, Spec, Workspace, unsupported_mount,
};
use cofferdam_guest::{Identity, Rule};
use cofferdam_linux::beneath;
use cofferdam_linux::landlock::access;
use cofferdam_linux::named::{Directory, NamedPath};
use rustix::fs::{FileType, OFlags};

use crate::disks::{self, MountPoint};
use crate::engine::Facts;
use crate::error;
use crate::labels::Owner;
use crate::overlay::{self, Layers, Overlay};
use crate::volume::AGENT_DIRECTORY;

/// File systems of the kernel, of which nothing may be mounted.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// A mount of a container.
#[derive(Debug)]
pub(crate) struct PlannedMount {
    pub target: String,
    pub source: PlannedSource,
}

/// The files of a mount.
#[derive(Debug)]
pub(crate) enum PlannedSource {
    /// A file or directory of the host. While the descriptor is open, no other file gets its inode number.
    Host { path: PathBuf, device: u64, inode: u64, is_directory: bool, read_only: bool, _opened: OwnedFd },
    /// A file system in a file of this size in bytes. It is mounted on the host as long as this lives.
    Disk { disk: MountPoint, device: u64, inode: u64, read_only: bool, size: u64 },
    /// A layer over a directory of the host. It is mounted on the host as long as this lives.
    Layered(Overlay),
    /// Memory of this size in bytes.
    Tmpfs(u64),
}

/// Refuses mounts that no container can have.
pub(crate) fn check(mounts: &[Mount]) -> Result<()> {
    for mount in mounts {
        let why = match &mount.source {
            MountSource::HostPath { access: MountAccess::CopyOnWrite, .. } if !overlay::is_permitted() => {
                "only root can mount a directory copy-on-write for a container"
            }
            MountSource::Disk { .. } if !disks::are_available() => "mounting a disk requires root and loop devices",
            _ if mount.target.as_path().starts_with(AGENT_DIRECTORY) => "the agent of the container is there",
            MountSource::HostPath { .. } | MountSource::Tmpfs { .. } | MountSource::Disk { .. } => continue,
        };
        let remedy = match &mount.source {
            MountSource::Disk { .. } => "use level vm, run as root, or use a volume without a size",
            _ => "use a read-only mount, another target, or level process",
        };
        return Err(unsupported_mount(mount, why).with_remedy(remedy));
    }
    Ok(())
}

/// Returns true if a spec mounts files of the host.
pub(crate) fn has_host_files(spec: &Spec) -> bool {
    spec.mounts().iter().any(|mount| mount.source.host_path().is_some())
}

/// Returns true if a spec needs overlays.
pub(crate) fn has_layers(spec: &Spec) -> bool {
    let is_layered =
        |mount: &Mount| matches!(mount.source, MountSource::HostPath { access: MountAccess::CopyOnWrite, .. });
    matches!(spec.workspace(), Workspace::CopyOnWrite { .. }) || spec.mounts().iter().any(is_layered)
}

/// Opens the host paths of a spec's mounts, and mounts its disks for a sandbox's user. `layers` are there if the spec
/// needs overlays.
pub(crate) fn open(
    spec: &Spec,
    facts: &Facts,
    user: (u32, u32),
    owner: &Owner,
    layers: Option<&Layers>,
) -> Result<Vec<PlannedMount>> {
    let one = |mount: &Mount| {
        let source = match &mount.source {
            MountSource::Tmpfs { size } => PlannedSource::Tmpfs(size.as_bytes()),
            MountSource::HostPath { path, access: MountAccess::CopyOnWrite } => {
                open_layered(spec, mount, path, layers)?
            }
            MountSource::HostPath { path, access } => open_path(spec, mount, path, *access, facts)?,
            MountSource::Disk { path, access } => open_disk(spec, mount, path, *access, facts, user, owner)?,
        };
        Ok(PlannedMount { target: mount.target.as_str().to_owned(), source })
    };
    spec.mounts().iter().map(one).collect()
}

fn open_disk(
    spec: &Spec,
    mount: &Mount,
    path: &Path,
    access: Access,
    facts: &Facts,
    user: (u32, u32),
    owner: &Owner,
) -> Result<PlannedSource> {
    if !facts.local || facts.rootless || facts.remapped {
        let why = "only an engine on this machine that is neither rootless nor has remapped users mounts disks";
        return Err(unsupported_mount(mount, why).with_remedy("use level process or vm, or the engine of root"));
    }
    let failed = |error| error::named("create", "cannot open the disk of a mount", path, error);
    let opened = NamedPath::open(path).map_err(failed)?;
    let stat = opened.stat();
    spec.check_directory(path, DirectoryId { device: stat.st_dev, inode: stat.st_ino })?;
    if is_kernels(opened.path()) || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return denied(path, "a disk is a regular file with an ext4 file system");
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let read_only = access == Access::ReadOnly;
    let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let file = beneath::reopen(&OwnedFd::from(opened), flags).map_err(failed)?;
    let disk = disks::mount_disk(&file, access, user, owner)?;
    let root = disk.path().symlink_metadata().map_err(failed)?;
    Ok(PlannedSource::Disk { disk, device: root.dev(), inode: root.ino(), read_only, size })
}

fn open_layered(spec: &Spec, mount: &Mount, path: &Path, layers: Option<&Layers>) -> Result<PlannedSource> {
    let opened = Directory::open(path)
        .map_err(|error| error::named("create", "cannot open the directory of a copy-on-write mount", path, error))?;
    let (device, inode) = opened.identity();
    spec.check_directory(path, DirectoryId { device, inode })?;
    if is_kernels(opened.path()) {
        return denied(opened.path(), "the root directory, /proc, /sys and /dev of the host are not mounted");
    }
    let layers = layers.ok_or_else(|| Error::new(ErrorKind::Internal, "create", "the sandbox has no layers"))?;
    let named = |error: Error| error.with_context("target", mount.target.to_string());
    layers.over(&opened, mount.target.as_str(), None).map(PlannedSource::Layered).map_err(named)
}

fn open_path(spec: &Spec, mount: &Mount, path: &Path, access: MountAccess, facts: &Facts) -> Result<PlannedSource> {
    let refuse = |why: &str, remedy: &str| {
        Err(unsupported_mount(mount, why)
            .with_context("path", path.display().to_string())
            .with_remedy(remedy.to_owned()))
    };
    if !facts.local {
        return refuse(
            "the engine runs on another machine, which does not have this path",
            "use an engine on this machine",
        );
    }
    if (facts.rootless || facts.remapped) && access == MountAccess::ReadWrite {
        return refuse(
            "a rootless engine, or one with remapped users, can mount host paths only read-only",
            "mount it read-only (:ro), or use the process backend",
        );
    }
    let opened = NamedPath::open(path)
        .map_err(|error| error::named("create", "cannot open the host path of a mount", path, error))?;
    let stat = opened.stat();
    let (device, inode) = (stat.st_dev, stat.st_ino);
    spec.check_directory(path, DirectoryId { device, inode })?;
    let is_directory = match FileType::from_raw_mode(stat.st_mode) {
        _ if is_kernels(opened.path()) => {
            return denied(opened.path(), "the root directory, /proc, /sys and /dev of the host are not mounted");
        }
        FileType::Directory => true,
        FileType::RegularFile => false,
        _ => {
            let why = "only directories and regular files of the host can be mounted, no devices, sockets and fifos";
            return denied(opened.path(), why);
        }
    };
    if opened.path().to_str().is_none() {
        return Err(Error::invalid("create", "the path is not UTF-8, which engines require")
            .with_context("path", path.display().to_string()));
    }
    let (path, read_only) = (opened.path().to_owned(), access != MountAccess::ReadWrite);
    Ok(PlannedSource::Host { path, device, inode, is_directory, read_only, _opened: OwnedFd::from(opened) })
}

fn is_kernels(path: &Path) -> bool {
    path == Path::new("/") || KERNEL.iter().any(|kernel| path.starts_with(kernel))
}

fn denied<T>(path: &Path, why: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Denied, "create", why.to_owned()).with_context("path", path.display().to_string()))
}

/// Files of the host for an engine to bind.
pub(crate) struct Bound<'a> {
    pub path: &'a Path,
    pub read_only: bool,
    device: u64,
    inode: u64,
    is_directory: bool,
}

impl PlannedMount {
    pub(crate) fn is_writable_disk(&self) -> bool {
        matches!(self.source, PlannedSource::Disk { read_only: false, .. })
    }

    pub(crate) fn is_layered(&self) -> bool {
        matches!(self.source, PlannedSource::Layered(_))
    }

    /// Returns the files of the host that the engine binds.
    pub(crate) fn bound(&self) -> Option<Bound<'_>> {
        match &self.source {
            PlannedSource::Host { path, device, inode, is_directory, read_only, .. } => {
                Some(Bound { path, read_only: *read_only, device: *device, inode: *inode, is_directory: *is_directory })
            }
            PlannedSource::Disk { disk, device, inode, read_only, .. } => Some(Bound {
                path: disk.path(),
                read_only: *read_only,
                device: *device,
                inode: *inode,
                is_directory: true,
            }),
            PlannedSource::Layered(Overlay { point, device, inode, .. }) => {
                Some(Bound { path: point.path(), read_only: false, device: *device, inode: *inode, is_directory: true })
            }
            PlannedSource::Tmpfs(_) => None,
        }
    }

    /// Returns the rule for guests: writable mounts are writable, and others keep the rule of the root.
    pub(crate) fn rule(&self) -> Option<Rule> {
        let rights = match self.source {
            PlannedSource::Tmpfs(_)
            | PlannedSource::Layered(_)
            | PlannedSource::Disk { read_only: false, .. }
            | PlannedSource::Host { is_directory: true, read_only: false, .. } => access::ALL,
            PlannedSource::Host { is_directory: false, read_only: false, .. } => {
                access::READ_FILE | access::EXECUTE | access::WRITE_FILE | access::TRUNCATE
            }
            PlannedSource::Disk { .. } | PlannedSource::Host { .. } => return None,
        };
        Some(Rule { path: self.target.clone(), rights })
    }

    /// Checks that the host path is still the opened file, and that the agent found that file at the target. The engine
    /// resolves the path, which a guest may have replaced meanwhile. A runtime with its own kernel has its own numbers.
    pub(crate) fn check(&self, found: Option<&Identity>, own_kernel: bool) -> Result<()> {
        let Some(Bound { path, device, inode, is_directory, .. }) = self.bound() else { return Ok(()) };
        let in_place = NamedPath::open(path).is_ok_and(|now| (now.stat().st_dev, now.stat().st_ino) == (device, inode));
        let numbers = (rustix::fs::major(device), rustix::fs::minor(device));
        let is_found = found.is_some_and(|found| {
            // The agent reads the device of directories only.
            found.inode == inode && (!is_directory || found.device == Some(numbers))
        });
        if in_place && (own_kernel || is_found) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotFound,
            "create",
            "the host path of a mount is not the file that was named any more",
        )
        .with_context("path", path.display().to_string())
        .with_remedy("check that it is not being moved, and that the engine and this process share a file system"))
    }
}

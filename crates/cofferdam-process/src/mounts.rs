//! Mounts of a spec, opened and planned.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam_contract::{
    Access, DirectoryId, Error, ErrorKind, Mount, MountAccess, MountSource, Result, Spec, unsupported_mount,
};
use cofferdam_linux::loop_device;
use cofferdam_linux::named::NamedPath;
use rustix::fs::{FileType, Stat};

use crate::error;
use crate::protocol::{MountFrom, MountPlan, MountPoint};

/// Directories that each sandbox has of its own: a target below them needs no mount point in the root.
const OWN_DIRECTORIES: [&str; 2] = ["/tmp", "/workspace"];
/// Directories of the root file system that no program may change.
const SYSTEM: [&str; 2] = ["/etc", "/usr"];
/// File systems of the kernel, of which nothing may be mounted.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Plans the mounts of a spec, parents before what is below them.
pub fn plan(spec: &Spec) -> Result<Vec<MountPlan>> {
    let mut plans = spec.mounts().iter().map(|mount| plan_one(spec, mount)).collect::<Result<Vec<_>>>()?;
    plans.sort_by_key(|plan| plan.target.components().count());
    Ok(plans)
}

/// Returns the mount points that the root needs. Others lie in directories of the sandbox's own.
pub fn mount_points(plans: &[MountPlan]) -> Vec<MountPoint> {
    let in_root = plans.iter().filter(|plan| !OWN_DIRECTORIES.iter().any(|own| plan.target.starts_with(own)));
    // What is mounted at a parent has the mount point, or not.
    let in_root = in_root.filter(|plan| {
        !plans.iter().any(|other| other.target != plan.target && plan.target.starts_with(&other.target))
    });
    let mut points: Vec<_> =
        in_root.map(|plan| MountPoint { target: plan.target.clone(), is_directory: plan.is_directory() }).collect();
    points.sort();
    points
}

fn plan_one(spec: &Spec, mount: &Mount) -> Result<MountPlan> {
    if SYSTEM.contains(&mount.target.as_str()) && !mount.source.is_read_only() {
        return Err(Error::invalid("create", "a writable mount cannot replace a directory of the root file system")
            .with_context("target", mount.target.to_string())
            .with_remedy("mount it read-only, or use a target below it"));
    }
    let target = mount.target.as_path().to_owned();
    let source = match &mount.source {
        MountSource::HostPath { path, access } => host(spec, mount, path, *access)?,
        MountSource::Tmpfs { size } => MountFrom::Tmpfs(size.as_bytes()),
        MountSource::Disk { path, access } => disk(spec, mount, path, *access)?,
    };
    Ok(MountPlan { target, source })
}

fn host(spec: &Spec, mount: &Mount, path: &Path, access: MountAccess) -> Result<MountFrom> {
    let failed = |error| error::mount(path, error);
    let opened = NamedPath::open(path).map_err(failed)?;
    let stat = opened.stat();
    spec.check_directory(path, DirectoryId { device: stat.st_dev, inode: stat.st_ino })?;
    let path = opened.path().to_owned();
    let is_directory = check_kind(stat, &path)?;
    if access == MountAccess::CopyOnWrite && !is_directory {
        return Err(unsupported_mount(mount, "only a directory can be mounted copy-on-write"));
    }
    let (device, inode, uid, gid) = (stat.st_dev, stat.st_ino, stat.st_uid, stat.st_gid);
    Ok(MountFrom::Host { path, device, inode, uid, gid, is_directory, access })
}

fn disk(spec: &Spec, mount: &Mount, path: &Path, access: Access) -> Result<MountFrom> {
    check_disks(mount)?;
    let opened = NamedPath::open(path).map_err(|error| error::mount(path, error))?;
    let stat = opened.stat();
    let (device, inode) = (stat.st_dev, stat.st_ino);
    spec.check_directory(path, DirectoryId { device, inode })?;
    let path = opened.path().to_owned();
    if check_kind(stat, &path)? {
        return Err(unsupported_mount(mount, "a disk is a file with an ext4 file system, and this is a directory"));
    }
    let is_read_only = access == Access::ReadOnly;
    Ok(MountFrom::Disk { path, device, inode, size: u64::try_from(stat.st_size).unwrap_or(0), is_read_only })
}

/// Refuses disks where the host cannot mount them: the kernel mounts file systems for root only.
pub fn check_disks(mount: &Mount) -> Result<()> {
    loop_device::probe().map_err(|error| {
        unsupported_mount(mount, &format!("the process backend cannot mount the disk: {error}"))
            .with_remedy("run as root on a host with loop devices (`modprobe loop`), or mount a directory")
    })
}

/// Returns true if this host can mount disks.
pub fn has_disks() -> bool {
    loop_device::probe().is_ok()
}

/// Returns true for a directory and false for a regular file. Refuses everything else.
fn check_kind(stat: &Stat, path: &Path) -> Result<bool> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let refuse = |message: &str| {
        Err(Error::new(ErrorKind::Denied, "create", message.to_owned())
            .with_context("path", path.display().to_string()))
    };
    if KERNEL.iter().any(|kernel| path.starts_with(kernel)) || path.as_os_str().as_bytes() == b"/" {
        return refuse("the root directory, /proc, /sys and /dev of the host are not mounted");
    }
    match kind {
        FileType::Directory => Ok(true),
        FileType::RegularFile => Ok(false),
        _ => refuse("only directories and regular files of the host can be mounted, no devices, sockets and fifos"),
    }
}

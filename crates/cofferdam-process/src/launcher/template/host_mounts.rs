//! Detached mounts of host files and directories, from the host's mount namespace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cofferdam_linux::loop_device::{self, Access};
use cofferdam_linux::mount::{self, Depth};
use cofferdam_linux::{beneath, named, namespace};
use rustix::fs::OFlags;

use super::Template;
use crate::launcher::{Identity, Named, Step};
use crate::protocol::{Create, Failure, MountFrom, WorkspacePlan};

/// The detached mounts of one sandbox.
#[derive(Debug, Default)]
pub struct HostMounts {
    /// The host directory that becomes the workspace.
    pub workspace: Option<OwnedFd>,
    /// The host's file or directory of each mount, in the order of the request. `None` for other mounts.
    pub mounts: Vec<Option<OwnedFd>>,
}

impl HostMounts {
    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.workspace.is_none() && self.mounts.iter().all(Option::is_none)
    }

    /// Returns all of them.
    pub fn iter(&self) -> impl Iterator<Item = &OwnedFd> {
        self.workspace.iter().chain(self.mounts.iter().flatten())
    }
}

impl Template {
    /// Returns the detached mounts of a sandbox. Fails if a path leads to another file than the caller named.
    pub fn open_host_mounts(&self, create: &Create, identity: Identity) -> Step<HostMounts> {
        let is_host = |mount: &MountFrom| !matches!(mount, MountFrom::Tmpfs(_));
        if create.workspace == WorkspacePlan::Private && !create.mounts.iter().any(|mount| is_host(&mount.source)) {
            return Ok(HostMounts { workspace: None, mounts: create.mounts.iter().map(|_| None).collect() });
        }
        let Some((host_mounts, template_mounts)) = &self.mounts else {
            return Err(Failure { step: "enter the host's mount namespace again".into(), errno: libc::ESTALE });
        };
        namespace::join(host_mounts.as_fd(), namespace::kind::MOUNT).step("enter the host's mount namespace")?;
        let opened = open_all(create, identity);
        // Outside the template, this launcher can do nothing safely.
        if namespace::join(template_mounts.as_fd(), namespace::kind::MOUNT).is_err() {
            cofferdam_linux::process::exit_now(71);
        }
        opened
    }
}

fn open_all(create: &Create, identity: Identity) -> Step<HostMounts> {
    // In the launcher's own user namespace, owners have other ids, and are not used.
    let owner = |uid, gid| identity.is_privileged().then_some((uid, gid));
    let workspace = match &create.workspace {
        WorkspacePlan::Private => None,
        WorkspacePlan::HostDir { path, device, inode, uid, gid, .. } => {
            Some(clone_same("workspace directory", path, (*device, *inode), owner(*uid, *gid))?)
        }
    };
    let mounts = create.mounts.iter().map(|mount| match &mount.source {
        MountFrom::Host { path, device, inode, uid, gid, .. } => {
            let what = format!("host path {} of a mount", path.display());
            clone_same(&what, path, (*device, *inode), owner(*uid, *gid)).map(Some)
        }
        MountFrom::Disk { path, device, inode, is_read_only, .. } => {
            let what = format!("disk {} of a mount", path.display());
            mount_disk(&what, path, (*device, *inode), *is_read_only).map(Some)
        }
        MountFrom::Tmpfs(_) => Ok(None),
    });
    Ok(HostMounts { workspace, mounts: mounts.collect::<Step<_>>()? })
}

/// Mounts a file system in a file. The loop device ends with the last mount.
fn mount_disk(what: &str, path: &Path, identity: (u64, u64), is_read_only: bool) -> Step<OwnedFd> {
    let opened = open_same(what, path, identity, None)?;
    let (access, flags) = match is_read_only {
        true => (Access::ReadOnly, OFlags::RDONLY),
        false => (Access::ReadWrite, OFlags::RDWR),
    };
    let disk = beneath::reopen(&opened, flags).step(&format!("open the {what}"))?;
    loop_device::mount_ext4(disk.as_fd(), access).map_err(|error| {
        let errno = error.source_error().raw_os_error().unwrap_or(libc::EIO);
        Failure { step: format!("mount the {what}"), errno }
    })
}

fn clone_same(what: &str, path: &Path, identity: (u64, u64), owner: Option<(u32, u32)>) -> Step<OwnedFd> {
    let opened = open_same(what, path, identity, owner)?;
    mount::clone_tree(opened.as_fd(), c"", Depth::Recursive).step(&format!("copy the mount of the {what}"))
}

/// Opens the file or directory that the host opened: in the launcher's mount namespace, only its path leads to it.
/// Refuses any other one, also one with the same inode that another user has created in its place.
pub fn open_same(what: &str, path: &Path, identity: (u64, u64), owner: Option<(u32, u32)>) -> Step<OwnedFd> {
    let opened = named::open(path).step(&format!("open the {what}"))?;
    let stat = rustix::fs::fstat(&opened).step(&format!("inspect the {what}"))?;
    let same_owner = owner.is_none_or(|owner| owner == (stat.st_uid, stat.st_gid));
    if (stat.st_dev, stat.st_ino) != identity || !same_owner {
        return Err(Failure { step: format!("find the {what} again"), errno: libc::ESTALE });
    }
    Ok(opened)
}

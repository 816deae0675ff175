//! The mount of the workspace: a directory of the sandbox's own, or of the host, perhaps below a layer.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::namespace::UnmappedUsers;
use rustix::fs::{Mode, OFlags, openat};

use super::create::{OPEN_DIR, Setup};
use super::{Identity, Named, Step};
use crate::protocol::WorkspacePlan;

/// The name of a copy-on-write workspace in failures. Callers may copy the directory instead: see `error.rs`.
pub const COPY_ON_WRITE: &str = "copy-on-write workspace";

/// Sets the size of the writable directories and mounts the workspace. Returns the workspace, and its layer if it is
/// copy-on-write.
pub fn mount_workspace(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd) -> Step<(OwnedFd, Option<OwnedFd>)> {
    let (create, own) = (setup.create, &setup.prepared.own);
    setup.prepared.resize(create.disk).step("set the size of the sandbox's tmpfs")?;
    let read_only = if create.read_only { attr::RDONLY } else { 0 };
    let (uid, gid) = (rustix::fs::Uid::from_raw(ids.0), rustix::fs::Gid::from_raw(ids.1));
    if let (WorkspacePlan::HostDir { uid, gid, copy_on_write, .. }, Some(tree)) =
        (&create.workspace, &setup.host_mounts.workspace)
    {
        let read_only = if *copy_on_write { attr::RDONLY } else { read_only };
        let attributes = attr::NOSUID | attr::NODEV | read_only;
        mount::add_attributes(tree.as_fd(), Depth::Recursive, attributes).step("restrict the workspace")?;
        if matches!(setup.identity, Identity::Unique { .. }) {
            let what = if *copy_on_write { COPY_ON_WRITE } else { "workspace" };
            show_owner_as(tree.as_fd(), (*uid, *gid), ids, (setup.prepared.users.as_ref(), proc), what)?;
        }
        mount::attach(tree.as_fd(), mount::cwd(), c"/workspace").step("attach the workspace")?;
        if *copy_on_write {
            let (layered, upper) = layer_over(setup, tree, ids, ("upper", "work"), COPY_ON_WRITE)?;
            mount::attach(layered.as_fd(), mount::cwd(), c"/workspace").step("attach the copy-on-write workspace")?;
            return Ok((layered, Some(upper)));
        }
        return Ok((tree.as_fd().try_clone_to_owned().step("keep the workspace")?, None));
    }
    rustix::fs::chownat(own, "workspace", Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .step("give the workspace to the sandbox's user")?;
    if read_only != 0 {
        mount::add_attributes_at(c"/workspace", read_only).step("make the workspace read-only")?;
    }
    Ok((openat(own, "workspace", OPEN_DIR, Mode::empty()).step("open the workspace")?, None))
}

/// Mounts a layer of the sandbox's own, in the directories `upper` and `work` of its file system, over a host directory.
/// Returns the detached mount and the layer.
pub fn layer_over(
    setup: &Setup<'_>,
    tree: &OwnedFd,
    ids: (u32, u32),
    (upper_name, work_name): (&str, &str),
    what: &str,
) -> Step<(OwnedFd, OwnedFd)> {
    let own = &setup.prepared.own;
    for name in [upper_name, work_name] {
        rustix::fs::mkdirat(own, name, Mode::from_raw_mode(0o700)).step("create a layer")?;
    }
    let upper = openat(own, upper_name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step("open the layer")?;
    let mode = rustix::fs::fstat(tree).step("inspect the lower directory")?.st_mode & 0o777;
    rustix::fs::fchmod(&upper, Mode::from_raw_mode(mode)).step("set the mode of the layer")?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(ids.0), rustix::fs::Gid::from_raw(ids.1));
    rustix::fs::fchown(&upper, Some(uid), Some(gid)).step("give the layer to the sandbox's user")?;
    let path = |fd: &OwnedFd, below: &str| {
        CString::new(format!("/proc/self/fd/{}/{below}", fd.as_raw_fd())).step("name a layer")
    };
    let paths = [path(tree, "")?, path(own, upper_name)?, path(own, work_name)?];
    let mut options = vec![(c"lowerdir", &*paths[0]), (c"upperdir", &*paths[1]), (c"workdir", &*paths[2])];
    // In a user namespace, the file system stores its own attributes as the user's.
    match setup.identity {
        Identity::Unique { .. } => options.push((c"redirect_dir", c"nofollow")),
        Identity::Caller => options.push((c"userxattr", c"")),
    }
    let layered = mount::new_filesystem(c"overlay", &options, attr::NOSUID | attr::NODEV)
        .step(&format!("mount the {what} (overlayfs; as an ordinary user it needs Linux 6.6)"))?;
    Ok((layered, upper))
}

/// Maps owners on the workspace mount: the host directory's owner appears as the sandbox's user, and new files of that
/// user belong to the owner. Uses a prepared user namespace, if there is one, or creates one with the mounted `proc`.
pub fn show_owner_as(
    tree: BorrowedFd<'_>,
    owner: (u32, u32),
    ids: (u32, u32),
    (prepared, proc): (Option<&UnmappedUsers>, &OwnedFd),
    what: &str,
) -> Step<()> {
    let created;
    let users = match prepared {
        Some(users) => users,
        None => {
            created = UnmappedUsers::create(proc.as_fd()).step("create a user namespace for a host directory")?;
            &created
        }
    };
    users.map(owner, ids).step("map the owner of a host directory")?;
    let step = format!("map owners on the {what}'s file system (it must support idmapped mounts)");
    mount::map_owners(tree, users.namespace()).step(&step)
}

//! Mounts besides the workspace, each at its target in the sandbox.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use cofferdam_contract::MountAccess;
use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount::{self, Depth, attr};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::create::Setup;
use super::namespace_pool::bounds;
use super::workspace::{layer_over, show_owner_as};
use super::{Identity, Named, Step};
use crate::protocol::{Failure, MountFrom, MountPlan};

/// Attaches the mounts, parents before what is below them. Returns what is visible at each.
pub fn attach_mounts(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd) -> Step<Vec<OwnedFd>> {
    let mut mounted = Vec::with_capacity(setup.create.mounts.len());
    if setup.create.mounts.is_empty() {
        return Ok(mounted);
    }
    let mut own_devices = vec![rustix::fs::stat("/tmp").step("inspect /tmp")?.st_dev];
    for (index, (plan, tree)) in setup.create.mounts.iter().zip(&setup.host_mounts.mounts).enumerate() {
        let step = |what: &str| format!("{what} the mount target {}", plan.target.display());
        let mount_point = find_or_create(plan, ids, &own_devices).step(&step("find"))?;
        let is_directory =
            FileType::from_raw_mode(rustix::fs::fstat(&mount_point).step(&step("inspect"))?.st_mode).is_dir();
        if is_directory != plan.is_directory() {
            let errno = if is_directory { libc::EISDIR } else { libc::ENOTDIR };
            return Err(Failure { step: step("use"), errno });
        }
        let attach = |tree: &OwnedFd| mount::attach_onto(tree.as_fd(), mount_point.as_fd()).step(&step("attach"));
        let keep = |tree: &OwnedFd| tree.try_clone().step(&step("keep"));
        mounted.push(match (&plan.source, tree) {
            (MountFrom::Tmpfs(size), _) => {
                let tree = tmpfs(*size, ids).step(&step("create the tmpfs of"))?;
                own_devices.push(rustix::fs::fstat(&tree).step(&step("inspect"))?.st_dev);
                attach(&tree)?;
                tree
            }
            (MountFrom::Host { uid, gid, access, .. }, Some(tree)) => {
                let attributes = if *access == MountAccess::ReadWrite { 0 } else { attr::RDONLY };
                mount::add_attributes(tree.as_fd(), Depth::Recursive, attributes | attr::NOSUID | attr::NODEV)
                    .step(&step("restrict"))?;
                if matches!(setup.identity, Identity::Unique { .. }) {
                    show_owner_as(tree.as_fd(), (*uid, *gid), ids, (None, proc), "mount")?;
                }
                // The lower directory of a layer must be attached as well. The layer covers it.
                attach(tree)?;
                if *access == MountAccess::CopyOnWrite {
                    let (upper, work) = (format!("upper-{index}"), format!("work-{index}"));
                    let (layered, _) = layer_over(setup, tree, ids, (&upper, &work), "copy-on-write mount")?;
                    attach(&layered)?;
                    layered
                } else {
                    keep(tree)?
                }
            }
            (MountFrom::Disk { .. }, Some(tree)) => {
                let root = rustix::fs::fstat(tree).step(&step("inspect the root of"))?;
                if matches!(setup.identity, Identity::Unique { .. }) {
                    show_owner_as(tree.as_fd(), (root.st_uid, root.st_gid), ids, (None, proc), "volume")?;
                }
                attach(tree)?;
                keep(tree)?
            }
            (MountFrom::Host { .. } | MountFrom::Disk { .. }, None) => {
                return Err(Failure { step: step("open"), errno: libc::ENOENT });
            }
        });
    }
    Ok(mounted)
}

/// Creates an empty file system in memory.
fn tmpfs(size: u64, ids: (u32, u32)) -> io::Result<OwnedFd> {
    let (bytes, files) = bounds(Some(size));
    let options = [(c"size", bytes.as_c_str()), (c"nr_inodes", files.as_c_str()), (c"mode", c"0755")];
    let tree = mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NODEV)?;
    give(&tree, ids)?;
    Ok(tree)
}

/// Opens the target, without following links. Creates what is missing on file systems of the sandbox's own.
fn find_or_create(plan: &MountPlan, ids: (u32, u32), own_devices: &[u64]) -> io::Result<OwnedFd> {
    let mut at = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = plan.target.components().filter_map(|part| match part {
        Component::Normal(name) => Some(Path::new(name)),
        _ => None,
    });
    let mut next = names.next();
    while let Some(name) = next {
        next = names.next();
        // A single name, which is opened itself even if it is a link.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&at, name, flags, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) if own_devices.contains(&rustix::fs::fstat(&at)?.st_dev) => {
                if next.is_none() && !plan.is_directory() {
                    rustix::fs::mknodat(&at, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?;
                } else {
                    rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755))?;
                }
                let opened = open()?;
                give(&opened, ids)?;
                opened
            }
            opened => opened?,
        };
        if FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).is_symlink() {
            return Err(Errno::LOOP.into());
        }
        at = opened;
    }
    Ok(at)
}

/// Gives an opened file to the sandbox's user.
fn give(file: &OwnedFd, (uid, gid): (u32, u32)) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?)
}

/// Adds a rule for what is visible at each mount. A target in a directory of the host may lead elsewhere meanwhile.
pub fn allow(rules: &Ruleset, mounts: &[MountPlan], mounted: &[OwnedFd]) -> io::Result<()> {
    for (mount, tree) in mounts.iter().zip(mounted) {
        let file = access::READ_FILE | access::EXECUTE;
        let rights = match (mount.is_directory(), mount.is_read_only()) {
            (true, true) => access::READ | access::EXECUTE,
            (true, false) => access::ALL,
            (false, true) => file,
            (false, false) => file | access::WRITE_FILE | access::TRUNCATE,
        };
        rules.allow(tree.as_fd(), rights)?;
    }
    Ok(())
}

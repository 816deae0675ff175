//! Disks at paths of their own, such as volumes. A VM has its own kernel, and no mounts of any other kind.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use cofferdam_contract::{Access, DirectoryId, Error, ErrorKind, Mount, MountSource, Result, Spec, unsupported_mount};
use cofferdam_guest::{Rule, usual_rules};
use cofferdam_image::boot::{DiskMount, MAX_MOUNTS};
use cofferdam_linux::landlock::access;
use cofferdam_linux::named::NamedPath;
use rustix::fs::{FileType, Mode, OFlags};

/// Names of the disks, in order.
const NAMES: [&str; MAX_MOUNTS] = ["cofferdam-disk-0", "cofferdam-disk-1", "cofferdam-disk-2", "cofferdam-disk-3"];

/// Directories of the root file system that no program may change.
const SYSTEM: [&str; 9] = ["/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/usr/bin", "/usr/lib", "/usr/sbin"];

/// A disk of a mount.
#[derive(Debug)]
pub(crate) struct MountedDisk {
    pub name: &'static str,
    pub file: File,
    pub access: Access,
}

/// Refuses mounts that no VM can have.
pub(crate) fn check(mounts: &[Mount]) -> Result<()> {
    for mount in mounts {
        if !matches!(mount.source, MountSource::Disk { .. }) {
            return Err(unsupported_mount(
                mount,
                "a VM has its own kernel and shares no files or memory with the host",
            )
            .with_remedy("copy files in (--copy-in), use a volume with a size (--volume), or level process"));
        }
        if SYSTEM.contains(&mount.target.as_str()) && !mount.source.is_read_only() {
            let why = "a writable mount cannot replace a directory of the root file system";
            return Err(Error::invalid("create", why)
                .with_context("target", mount.target.to_string())
                .with_remedy("mount it read-only, or use a target below it"));
        }
        if !DiskMount::is_target(mount.target.as_str().as_bytes()) {
            let why = "the path of a disk in a VM has at most 128 letters, digits and the characters -._+@/";
            return Err(unsupported_mount(mount, why).with_remedy("use another target"));
        }
    }
    match mounts.get(MAX_MOUNTS) {
        Some(mount) => {
            Err(unsupported_mount(mount, "a VM has at most 4 disks besides its own").with_remedy("use fewer volumes"))
        }
        None => Ok(()),
    }
}

/// Returns the mounts of a spec, parents before the paths below them.
pub(crate) fn in_order(spec: &Spec) -> Vec<&Mount> {
    let mut mounts: Vec<&Mount> = spec.mounts().iter().collect();
    mounts.sort_by_key(|mount| mount.target.as_path().components().count());
    mounts
}

/// Opens the disks of a spec's mounts, in the order of [`in_order`].
pub(crate) fn open(spec: &Spec) -> Result<Vec<MountedDisk>> {
    let mounts = in_order(spec);
    mounts.into_iter().zip(NAMES).map(|(mount, name)| open_one(spec, mount, name)).collect()
}

fn open_one(spec: &Spec, mount: &Mount, name: &'static str) -> Result<MountedDisk> {
    let MountSource::Disk { path, access } = &mount.source else {
        return Err(unsupported_mount(mount, "it is no disk"));
    };
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Io,
        };
        refused(kind, "the disk of a mount cannot be opened", path).with_source(error)
    };
    let opened = NamedPath::open(path).map_err(failed)?;
    let stat = opened.stat();
    spec.check_directory(path, DirectoryId { device: stat.st_dev, inode: stat.st_ino })?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused(ErrorKind::Denied, "a disk is a regular file with an ext4 file system", path));
    }
    let flags = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let opened = OwnedFd::from(opened);
    let file =
        rustix::fs::open(format!("/proc/self/fd/{}", opened.as_raw_fd()), flags | OFlags::CLOEXEC, Mode::empty());
    Ok(MountedDisk { name, file: File::from(file.map_err(|error| failed(error.into()))?), access: *access })
}

fn refused(kind: ErrorKind, what: &str, path: &Path) -> Error {
    Error::new(kind, "create", what.to_owned()).with_context("path", path.display().to_string())
}

/// Returns the rules for guests: writable disks are writable.
pub(crate) fn rules(spec: &Spec) -> Vec<Rule> {
    let mut rules = usual_rules(spec.workspace().access());
    let writable = spec.mounts().iter().filter(|mount| !mount.source.is_read_only());
    rules.extend(writable.map(|mount| Rule { path: mount.target.to_string(), rights: access::ALL }));
    rules
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::MountTarget;

    use super::*;

    #[test]
    fn impossible_disks_are_refused_before_a_vm_starts() {
        let disk = |target: &str, access| Mount {
            target: MountTarget::new(target).unwrap(),
            source: MountSource::Disk { path: "/disk".into(), access },
        };
        for (target, access, is_possible) in [
            ("/v", Access::ReadWrite, true),
            ("/etc", Access::ReadOnly, true),
            ("/etc/app", Access::ReadWrite, true),
            ("/etc", Access::ReadWrite, false),
            ("/usr/bin", Access::ReadWrite, false),
            ("/a b", Access::ReadOnly, false),
        ] {
            assert_eq!(check(&[disk(target, access)]).is_ok(), is_possible, "{target} {access:?}");
        }
        let many: Vec<_> = (0..=MAX_MOUNTS).map(|number| disk(&format!("/{number}"), Access::ReadOnly)).collect();
        assert!(check(&many[1..]).is_ok() && check(&many).is_err());
    }
}

//! The user of a sandbox: never root, and never shared with another sandbox.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cofferdam_contract::{Access, DirectoryId, Error, ErrorKind, Result, Spec, Workspace};
use cofferdam_linux::named::Directory;

use crate::engine::Facts;
use crate::error;
use crate::overlay::Overlay;

/// The range of users for sandboxes, which no host uses. Each sandbox has its own, so that the kernel's counts for a
/// user belong to one sandbox.
const FIRST_UID: u32 = 0x7100_0000;
const UID_COUNT: u32 = 0x00f0_0000;
/// The range for an engine with 65536 ids for all containers. It lies below the upper half of such a map, which process
/// sandboxes use.
const FIRST_REMAPPED_UID: u32 = 20_000;
const REMAPPED_UID_COUNT: u32 = 12_000;
const _: () = assert!(FIRST_REMAPPED_UID + REMAPPED_UID_COUNT <= 65_536 / 2);

/// A host directory, or an overlay over one, that is mounted as the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedDirectory {
    /// The path, without symbolic links.
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    owner: (u32, u32),
}

impl MountedDirectory {
    /// Opens the directory of the workspace, with the permissions of this process. While the descriptor is open, no
    /// other directory gets its inode number.
    pub(crate) fn open(spec: &Spec) -> Result<Option<(Self, Directory)>> {
        let Workspace::HostDir { path, .. } = spec.workspace() else { return Ok(None) };
        let opened = open_directory(spec, path)?;
        let (device, inode) = opened.identity();
        if opened.path().to_str().is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "create", "the path is not UTF-8, which engines require")
                .with_context("path", path.display().to_string()));
        }
        let mounted = Self { path: opened.path().to_owned(), device, inode, owner: opened.owner() };
        Ok(Some((mounted, opened)))
    }

    /// Returns the overlay of a copy-on-write workspace.
    pub(crate) fn layered(overlay: &Overlay, owner: (u32, u32)) -> Self {
        Self { path: overlay.point.path().to_owned(), device: overlay.device, inode: overlay.inode, owner }
    }

    /// Returns true if its path still leads to it, and if it is the workspace that the agent measured.
    pub(crate) fn matches(&self, device: Option<(u32, u32)>, inode: Option<u64>) -> bool {
        let numbers = (rustix::fs::major(self.device), rustix::fs::minor(self.device));
        self.is_in_place() && device == Some(numbers) && inode == Some(self.inode)
    }

    /// Returns true if its path still leads to it.
    pub(crate) fn is_in_place(&self) -> bool {
        Directory::open(&self.path).is_ok_and(|now| now.identity() == (self.device, self.inode))
    }
}

/// Opens the directory below a copy-on-write workspace.
pub(crate) fn open_base(spec: &Spec) -> Result<Option<Directory>> {
    let Workspace::CopyOnWrite { path } = spec.workspace() else { return Ok(None) };
    open_directory(spec, path).map(Some)
}

fn open_directory(spec: &Spec, path: &Path) -> Result<Directory> {
    let opened = Directory::open(path)
        .map_err(|error| error::named("create", "cannot open the workspace directory", path, error))?;
    let (device, inode) = opened.identity();
    spec.check_directory(path, DirectoryId { device, inode })?;
    Ok(opened)
}

/// Returns successive numbers below `count` from a random start, so that sandboxes of this process share none until all
/// are used.
fn next_below(count: u32) -> u32 {
    static START: LazyLock<u32> = LazyLock::new(|| fastrand::u32(..));
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    START.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % count
}

/// Returns the user and group for a sandbox.
pub(crate) fn choose(
    facts: &Facts,
    mounted: Option<(&MountedDirectory, Access)>,
    has_mounts: bool,
    caller: (u32, u32),
) -> Result<(u32, u32)> {
    let remapped = facts.rootless || facts.remapped;
    let fresh = || {
        let uid = if remapped {
            FIRST_REMAPPED_UID + next_below(REMAPPED_UID_COUNT)
        } else {
            FIRST_UID + next_below(UID_COUNT)
        };
        (uid, uid)
    };
    let Some((mounted, access)) = mounted else {
        // An ordinary caller reaches its own files.
        return Ok(match caller {
            (uid, gid) if has_mounts && uid != 0 && !remapped => (uid, if gid == 0 { uid } else { gid }),
            _ => fresh(),
        });
    };
    let refused = |what: &str, remedy: &str| {
        Err(Error::unsupported("create", what)
            .with_context("path", mounted.path.display().to_string())
            .with_remedy(remedy))
    };
    if !facts.local {
        return refused(
            "the engine runs on another machine, which does not have this directory",
            "use a private workspace and the file API, or an engine on this machine",
        );
    }
    if remapped {
        // The directory's owner would be root inside, or unmapped.
        return match access {
            Access::ReadOnly => Ok(fresh()),
            Access::ReadWrite => refused(
                "a rootless engine, or one with remapped users, can mount a host directory only read-only",
                "mount it read-only (DIR:ro), use a private workspace and the file API, or use the process backend",
            ),
        };
    }
    // An ordinary caller mounts with its own permissions, root with those of the owner.
    let (uid, gid) = if caller.0 == 0 { mounted.owner } else { caller };
    match (uid, access) {
        (0, Access::ReadOnly) => Ok(fresh()),
        (0, Access::ReadWrite) => refused(
            "the directory belongs to root, and sandboxes never run as root",
            "give it to an ordinary user (`chown 1000:1000 DIR`), mount it read-only (DIR:ro), or use the process \
             backend",
        ),
        (uid, _) => Ok((uid, if gid == 0 { uid } else { gid })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(owner: (u32, u32)) -> MountedDirectory {
        MountedDirectory { path: "/x".into(), device: 1, inode: 2, owner }
    }

    #[test]
    fn chosen_user_is_never_root() {
        let local = Facts { local: true, ..Facts::default() };
        let rootless = Facts { rootless: true, ..local.clone() };
        for facts in [&local, &rootless] {
            for caller in [(0, 0), (1000, 1000), (1000, 0)] {
                for owner in [(0, 0), (0, 5), (7, 0), (7, 8)] {
                    for access in [Access::ReadOnly, Access::ReadWrite] {
                        let mounted = mounted(owner);
                        if let Ok((uid, gid)) = choose(facts, Some((&mounted, access)), false, caller) {
                            assert!(uid != 0 && gid != 0);
                        }
                    }
                }
                let (uid, gid) = choose(facts, None, false, caller).unwrap();
                assert!(uid >= FIRST_REMAPPED_UID && uid == gid);
                assert!(!facts.rootless || uid < 65_536);
            }
        }
    }

    #[test]
    fn sandboxes_of_one_process_do_not_share_a_user() {
        let remapped = Facts { local: true, rootless: true, ..Facts::default() };
        let users: std::collections::BTreeSet<u32> =
            (0..2000).map(|_| choose(&remapped, None, false, (7, 7)).unwrap().0).collect();
        assert_eq!(users.len(), 2000);
        assert!(users.iter().all(|user| (FIRST_REMAPPED_UID..32_768).contains(user)));
    }

    #[test]
    fn mounted_directory_is_used_with_the_permissions_of_its_user() {
        let facts = Facts { local: true, ..Facts::default() };
        let write = |owner, caller| choose(&facts, Some((&mounted(owner), Access::ReadWrite)), false, caller);
        assert_eq!(write((7, 8), (0, 0)).unwrap(), (7, 8), "root mounts as the owner");
        assert_eq!(write((7, 8), (1000, 1001)).unwrap(), (1000, 1001), "other callers mount as themselves");
        assert_eq!(write((0, 0), (1000, 1001)).unwrap(), (1000, 1001));
        let error = write((0, 0), (0, 0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("chown")));
    }

    #[test]
    fn directory_that_differs_from_the_opened_one_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        for name in ["named", "other"] {
            std::fs::create_dir(top.join(name)).unwrap();
        }
        let workspace = Workspace::HostDir { path: top.join("named"), access: Access::ReadWrite };
        let spec = Spec::builder().workspace(workspace).build().unwrap();
        let (mounted, _opened) = MountedDirectory::open(&spec).unwrap().unwrap();
        let device = Some((rustix::fs::major(mounted.device), rustix::fs::minor(mounted.device)));
        assert!(mounted.matches(device, Some(mounted.inode)));
        assert!(!mounted.matches(device, Some(mounted.inode + 1)));
        assert!(!mounted.matches(Some((0, 0)), Some(mounted.inode)));
        assert!(!mounted.matches(device, None) && !mounted.matches(None, Some(mounted.inode)), "without a measurement");
        std::fs::rename(top.join("named"), top.join("aside")).unwrap();
        std::os::unix::fs::symlink("aside", top.join("named")).unwrap();
        assert!(!mounted.matches(device, Some(mounted.inode)), "its path has become a link");
        assert_eq!(MountedDirectory::open(&spec).unwrap_err().kind(), ErrorKind::PathEscape);
        std::fs::remove_file(top.join("named")).unwrap();
        std::fs::rename(top.join("other"), top.join("named")).unwrap();
        assert!(!mounted.is_in_place(), "its path leads to another directory");
        let recorded = DirectoryId { device: mounted.device, inode: mounted.inode };
        let spec = spec.to_builder().directory(top.join("named"), recorded).build().unwrap();
        assert_eq!(MountedDirectory::open(&spec).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn directory_that_the_engine_lacks_cannot_be_mounted() {
        let far = Facts::default();
        let error = choose(&far, Some((&mounted((7, 7)), Access::ReadOnly)), false, (7, 7)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let rootless = Facts { local: true, rootless: true, ..Facts::default() };
        assert!(choose(&rootless, Some((&mounted((7, 7)), Access::ReadWrite)), false, (7, 7)).is_err());
        assert!(choose(&rootless, Some((&mounted((7, 7)), Access::ReadOnly)), false, (7, 7)).is_ok());
    }
}

//! As whom a sandbox runs: never root, and nobody else's user.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cofferdam_contract::{Access, Error, ErrorKind, Result, Spec, Workspace};

use crate::engine::Facts;
use crate::error;

/// Users that no host has; each sandbox takes one of its own, so that what a kernel counts for a user is its own.
const FIRST: u32 = 0x7100_0000;
const COUNT: u32 = 0x00f0_0000;
/// The same where an engine has 65536 ids for all its containers. Below the upper half of such a map, which process sandboxes
/// use there.
const FIRST_OF_FEW: u32 = 20_000;
const COUNT_OF_FEW: u32 = 12_000;

/// A directory of the host that is lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Looked up: no part of it is a link.
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    owner: (u32, u32),
}

impl Lent {
    /// Looks the workspace's directory up, with the rights of this process.
    pub(crate) fn of(spec: &Spec) -> Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt;
        let Workspace::HostDir { path, .. } = spec.workspace() else { return Ok(None) };
        let open = |path: &Path| {
            let path = path.canonicalize()?;
            let directory = std::fs::File::open(&path)?;
            let meta = directory.metadata()?;
            Ok((path, meta))
        };
        let (found, meta) = open(path).map_err(|error| {
            error::os("create", "the workspace directory cannot be opened", error)
                .with_context("path", path.display().to_string())
        })?;
        if !meta.is_dir() {
            return Err(Error::new(ErrorKind::InvalidInput, "create", "the workspace is not a directory")
                .with_context("path", path.display().to_string()));
        }
        if found.to_str().is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "create", "the engine takes only paths in UTF-8")
                .with_context("path", path.display().to_string()));
        }
        Ok(Some(Self { path: found, device: meta.dev(), inode: meta.ino(), owner: (meta.uid(), meta.gid()) }))
    }
}

/// Returns one number below `count` after the other, from a random start: sandboxes of this process share none before all were
/// used.
fn next_below(count: u32) -> u32 {
    static START: LazyLock<u32> = LazyLock::new(|| fastrand::u32(..));
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    START.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % count
}

/// User and group for a sandbox.
pub(crate) fn choose(facts: &Facts, lent: Option<(&Lent, Access)>, caller: (u32, u32)) -> Result<(u32, u32)> {
    let few = facts.rootless || facts.remapped;
    let fresh = || {
        let uid = if few { FIRST_OF_FEW + next_below(COUNT_OF_FEW) } else { FIRST + next_below(COUNT) };
        (uid, uid)
    };
    let Some((lent, access)) = lent else { return Ok(fresh()) };
    let refused = |what: &str, remedy: &str| {
        Err(Error::unsupported("create", what)
            .with_context("path", lent.path.display().to_string())
            .with_remedy(remedy))
    };
    if !facts.local {
        return refused(
            "the engine is on another machine, where this directory is not",
            "use a private workspace and the file API, or an engine on this machine",
        );
    }
    if few {
        // The directory's owner would be root inside, or nobody.
        return match access {
            Access::ReadOnly => Ok(fresh()),
            Access::ReadWrite => refused(
                "an engine without root, or with remapped users, can lend a directory only read-only",
                "lend it read-only (DIR:ro), use a private workspace and the file API, or use the process backend",
            ),
        };
    }
    // An ordinary caller lends what is its own right to use; root lends in the name of the owner.
    let (uid, gid) = if caller.0 == 0 { lent.owner } else { caller };
    match (uid, access) {
        (0, Access::ReadOnly) => Ok(fresh()),
        (0, Access::ReadWrite) => refused(
            "the directory belongs to root, and no sandbox is ever root",
            "give it to an ordinary user (`chown 1000:1000 DIR`), lend it read-only (DIR:ro), or use the process backend",
        ),
        (uid, _) => Ok((uid, if gid == 0 { uid } else { gid })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(owner: (u32, u32)) -> Lent {
        Lent { path: "/x".into(), device: 1, inode: 2, owner }
    }

    #[test]
    fn nobody_is_ever_root() {
        let local = Facts { local: true, ..Facts::default() };
        let rootless = Facts { rootless: true, ..local.clone() };
        for facts in [&local, &rootless] {
            for caller in [(0, 0), (1000, 1000), (1000, 0)] {
                for owner in [(0, 0), (0, 5), (7, 0), (7, 8)] {
                    for access in [Access::ReadOnly, Access::ReadWrite] {
                        let lent = lent(owner);
                        if let Ok((uid, gid)) = choose(facts, Some((&lent, access)), caller) {
                            assert!(uid != 0 && gid != 0);
                        }
                    }
                }
                let (uid, gid) = choose(facts, None, caller).unwrap();
                assert!(uid >= FIRST_OF_FEW && uid == gid);
                assert!(!facts.rootless || uid < 65_536);
            }
        }
    }

    #[test]
    fn sandboxes_of_one_process_do_not_share_a_user() {
        let few = Facts { local: true, rootless: true, ..Facts::default() };
        let users: std::collections::BTreeSet<u32> = (0..2000).map(|_| choose(&few, None, (7, 7)).unwrap().0).collect();
        assert_eq!(users.len(), 2000);
        assert!(users.iter().all(|user| (FIRST_OF_FEW..32_768).contains(user)));
    }

    #[test]
    fn a_lent_directory_is_used_as_who_may_use_it() {
        let facts = Facts { local: true, ..Facts::default() };
        let write = |owner, caller| choose(&facts, Some((&lent(owner), Access::ReadWrite)), caller);
        assert_eq!(write((7, 8), (0, 0)).unwrap(), (7, 8), "root lends in the name of the owner");
        assert_eq!(write((7, 8), (1000, 1001)).unwrap(), (1000, 1001), "others only in their own");
        assert_eq!(write((0, 0), (1000, 1001)).unwrap(), (1000, 1001));
        let error = write((0, 0), (0, 0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("chown")));
    }

    #[test]
    fn what_the_engine_does_not_have_cannot_be_lent() {
        let far = Facts::default();
        let error = choose(&far, Some((&lent((7, 7)), Access::ReadOnly)), (7, 7)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let rootless = Facts { local: true, rootless: true, ..Facts::default() };
        assert!(choose(&rootless, Some((&lent((7, 7)), Access::ReadWrite)), (7, 7)).is_err());
        assert!(choose(&rootless, Some((&lent((7, 7)), Access::ReadOnly)), (7, 7)).is_ok());
    }
}

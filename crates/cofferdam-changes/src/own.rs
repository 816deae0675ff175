//! Directories of Cofferdam's own, in which no change is applied.
//!
//! Settings, images, plugins and kept changes decide what later sandboxes may do. A workspace that contains them, such as
//! a home directory, would let a guest decide. They are found by their paths without links, also those that do not
//! exist yet, and by device and inode, so that a bind mount leads to no other result.

use std::cell::RefCell;
use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::Stat;

use crate::change::{Change, Node};
use crate::{aliases, tree};

/// Bases of the directories: the variable, and the default below the home directory.
const BASES: [(&str, &str); 4] = [
    ("XDG_STATE_HOME", ".local/state"),
    ("XDG_CACHE_HOME", ".cache"),
    ("XDG_DATA_HOME", ".local/share"),
    ("XDG_CONFIG_HOME", ".config"),
];
/// Name of the directory below each base.
const NAME: &str = "cofferdam";
/// Directories of all users.
const FIXED: [&str; 2] = ["/var/lib/cofferdam", "/run/cofferdam-disks"];
/// Directories of users without a home, and of this user's server, in the directory for temporary files.
const TEMPORARY: [&str; 3] = ["cofferdam-changes", "cofferdam-volumes", "cofferdam"];
/// Maximum number of links that are followed to a directory.
const MAX_LINKS: usize = 64;

/// Directories of Cofferdam's own. They need not exist.
#[derive(Debug, Clone)]
pub struct OwnDirectories(Vec<PathBuf>);

impl OwnDirectories {
    /// Creates a list of absolute paths.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(paths.into_iter().collect())
    }

    /// Returns the directories with settings, change sets, images, plugins, volumes and sockets of this user.
    #[must_use]
    pub fn of_user() -> Self {
        let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let user = rustix::process::geteuid().as_raw();
        let home = set("HOME");
        let bases = BASES.iter().flat_map(|(name, below)| [set(name), home.as_ref().map(|home| home.join(below))]);
        let runtime = [set("XDG_RUNTIME_DIR"), Some(PathBuf::from(format!("/run/user/{user}")))];
        let temporary = [env::temp_dir(), "/tmp".into()];
        let mut all: Vec<PathBuf> = bases.chain(runtime).flatten().map(|base| base.join(NAME)).collect();
        all.extend(temporary.iter().flat_map(|base| TEMPORARY.map(|name| base.join(format!("{name}-{user}")))));
        all.extend(FIXED.map(PathBuf::from));
        Self(all)
    }

    /// Returns the paths.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Default for OwnDirectories {
    fn default() -> Self {
        Self::of_user()
    }
}

/// Own directories, seen from one workspace.
#[derive(Debug)]
pub(crate) struct Own {
    /// Paths relative to the workspace: the directories, and links that lead to them.
    paths: Vec<PathBuf>,
    /// Device and inode of each directory.
    ids: Vec<(u64, u64)>,
    /// True if the workspace is in one of them.
    is_inside: bool,
    /// Paths of the workspace that were compared, and whether they are in an own directory.
    known: RefCell<HashMap<PathBuf, bool>>,
}

impl Own {
    /// Finds the directories.
    pub fn find(directory: BorrowedFd<'_>, own: &OwnDirectories) -> Self {
        let workspace = aliases::path_of(directory).unwrap_or_default();
        let id_of = |path: &Path| rustix::fs::lstat(path).ok().map(|stat| id(&stat));
        let (mut paths, mut ids, mut is_inside) = (Vec::new(), Vec::new(), false);
        for named in own.paths() {
            let (links, real) = resolved(named);
            is_inside |= workspace.starts_with(&real);
            ids.extend(id_of(&real));
            let below = links.into_iter().chain([real]);
            paths.extend(below.filter_map(|path| Some(path.strip_prefix(&workspace).ok()?.to_owned())));
        }
        is_inside |= workspace.ancestors().filter_map(id_of).any(|id| ids.contains(&id));
        Self { paths, ids, is_inside, known: RefCell::default() }
    }

    /// Returns true if a change is in an own directory, replaces or deletes one, or leads the way to one elsewhere.
    pub fn concerns(&self, directory: BorrowedFd<'_>, change: &Change) -> bool {
        let stays = matches!(change.node, Some(Node::Directory { .. }));
        let concerns = |own: &PathBuf| change.path.starts_with(own) || (!stays && own.starts_with(&change.path));
        self.is_inside || self.paths.iter().any(concerns) || self.has(directory, &change.path)
    }

    /// Returns true if a path of the workspace is an own directory, or in one.
    fn has(&self, directory: BorrowedFd<'_>, path: &Path) -> bool {
        let Some(parent) = path.parent() else { return self.is_inside };
        if let Some(known) = self.known.borrow().get(path) {
            return *known;
        }
        let opened = || tree::open_directory(directory, path).ok();
        let is_own = || opened().and_then(|found| rustix::fs::fstat(found.as_fd()).ok()).map(|stat| id(&stat));
        let found = self.has(directory, parent) || is_own().is_some_and(|id| self.ids.contains(&id));
        self.known.borrow_mut().insert(path.to_owned(), found);
        found
    }
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns the links on the way to a path, and the path to which they lead. Parts of the path need not exist.
fn resolved(path: &Path) -> (Vec<PathBuf>, PathBuf) {
    let (mut links, mut real) = (Vec::new(), PathBuf::from("/"));
    let mut left: Vec<PathBuf> = parts(path);
    while let Some(part) = left.pop() {
        if part.as_os_str() == ".." {
            real.pop();
            continue;
        }
        let next = real.join(part);
        match rustix::fs::readlink(&next, Vec::new()) {
            Ok(target) if links.len() < MAX_LINKS => {
                let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                links.push(next);
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                left.extend(parts(target));
            }
            _ => real = next,
        }
    }
    (links, real)
}

/// Returns the names of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_on_the_way_are_found_and_missing_parts_are_kept() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("disk/state")).unwrap();
        std::fs::create_dir(top.join("home")).unwrap();
        std::os::unix::fs::symlink("../disk/state", top.join("home/state")).unwrap();
        std::os::unix::fs::symlink(top.join("home"), top.join("user")).unwrap();
        let (links, real) = resolved(&top.join("user/state/missing/cofferdam"));
        assert_eq!(real, top.join("disk/state/missing/cofferdam"));
        assert_eq!(links, [top.join("user"), top.join("home/state")]);
        std::os::unix::fs::symlink("loop", top.join("loop")).unwrap();
        assert_eq!(resolved(&top.join("loop/x")).0.len(), MAX_LINKS);
    }

    #[test]
    fn the_directories_of_the_user_are_absolute_and_distinct_from_projects() {
        let all = OwnDirectories::of_user();
        assert!(all.paths().contains(&PathBuf::from("/var/lib/cofferdam")));
        assert!(all.paths().iter().all(|path| path.is_absolute()), "{all:?}");
    }
}

//! Comparison of a change set with the workspace: deletions by cleared directories, changes of permissions alone, and
//! renamed files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use crate::bounds::MAX_VISITED;
use crate::capture;
use crate::change::{Change, Kind, Node};
use crate::error::{Result, io};
use crate::fingerprint::{Base, FileKind, Fingerprint, Subtree};
use crate::read::ChangeSet;
use crate::render::{is_half_of_rename, renamed};
use crate::tree;

/// Maximum of bytes that are read to find changes of permissions alone, and again to find renamed files.
const MAX_COMPARED: u64 = 256 << 20;
/// Maximum number of deleted files that are compared with new ones.
const MAX_RENAMED: usize = 10_000;

/// Returns all selected changes, compared with the workspace as it is now, in the order of paths.
///
/// Cleared directories become deletions. A change of permissions alone and a renamed file get kinds of their own.
///
/// # Errors
///
/// Those of the operating system.
pub fn resolve(set: &ChangeSet, directory: BorrowedFd<'_>) -> Result<Vec<Change>> {
    let mut changes = expand(set, directory)?;
    let mut budget = MAX_COMPARED;
    for change in &mut changes {
        if is_mode_change(set, directory, change, &mut budget)? {
            change.kind = Kind::ModeChanged;
        }
    }
    rename(set, directory, &mut changes)?;
    Ok(changes)
}

/// Returns the number of changed files in a review: a renamed file is one. Without the workspace, each change is one.
pub(crate) fn count(set: &ChangeSet, directory: Option<BorrowedFd<'_>>) -> usize {
    let compared = directory.and_then(|directory| {
        let changes = expand_renamed(set, directory).ok()?;
        let renamed = renamed(&changes);
        Some(changes.iter().filter(|change| !is_half_of_rename(change, &renamed)).count())
    });
    compared.unwrap_or(set.changes().len() + set.cleared().len())
}

/// Returns all selected changes, with deletions in place of cleared directories.
pub(crate) fn expand(set: &ChangeSet, directory: BorrowedFd<'_>) -> Result<Vec<Change>> {
    let changes: BTreeMap<PathBuf, Change> =
        set.changes().iter().map(|change| (change.path.clone(), change.clone())).collect();
    let mut clear = Clear { cleared: set.cleared().iter().collect(), changes, visited: 0 };
    for path in set.cleared() {
        if let Some(found) = open(directory, path)? {
            clear.directory(found.as_fd(), path)?;
        }
    }
    Ok(clear.changes.into_values().filter(|change| set.is_selected(&change.path)).collect())
}

/// Returns all selected changes as [`expand`] does, and finds renamed files.
pub(crate) fn expand_renamed(set: &ChangeSet, directory: BorrowedFd<'_>) -> Result<Vec<Change>> {
    let mut changes = expand(set, directory)?;
    rename(set, directory, &mut changes)?;
    Ok(changes)
}

struct Clear<'a> {
    cleared: BTreeSet<&'a PathBuf>,
    changes: BTreeMap<PathBuf, Change>,
    visited: usize,
}

impl Clear<'_> {
    fn directory(&mut self, directory: BorrowedFd<'_>, path: &Path) -> Result<()> {
        let names = tree::names(directory, MAX_VISITED - self.visited).map_err(io("read", path))?;
        self.visited += names.len();
        for name in names {
            let path = path.join(&name);
            let Some(stat) = tree::stat(directory, &name).map_err(io("inspect", &path))? else { continue };
            let is_directory = tree::kind(&stat) == FileType::Directory;
            let keeps = is_directory && self.keeps_directory(&path);
            if keeps && self.cleared.contains(&path) {
                continue;
            }
            let below = if is_directory {
                Some(tree::subdirectory(directory, &name).map_err(io("open", &path))?)
            } else {
                None
            };
            match below {
                Some(below) if keeps => self.directory(below.as_fd(), &path)?,
                below => self.replace(path, &stat, below.as_ref().map(AsFd::as_fd))?,
            }
        }
        Ok(())
    }

    /// Returns true if the change set has a directory at the path, be it without an entry of its own.
    fn keeps_directory(&self, path: &Path) -> bool {
        match self.changes.get(path) {
            Some(change) => matches!(change.node, Some(Node::Directory { .. })),
            None => {
                let from = (std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded);
                let changed = self.changes.range::<Path, _>(from).next().map(|(next, _)| next.as_path());
                let cleared = self.cleared.range::<PathBuf, _>(path.to_owned()..).next().map(|next| next.as_path());
                changed.into_iter().chain(cleared).any(|next| next.starts_with(path))
            }
        }
    }

    /// Deletes a file, or makes it the base of the change that replaces it.
    fn replace(&mut self, path: PathBuf, stat: &Stat, below: Option<BorrowedFd<'_>>) -> Result<()> {
        if self.changes.get(&path).is_some_and(|change| change.base.is_some()) {
            return Ok(());
        }
        let tree = below.map(|below| Ok(Subtree::walk(below)?.digest())).transpose()?;
        let node = self.changes.get(&path).and_then(|change| change.node.clone());
        let base = Base { fingerprint: Fingerprint::of(stat), tree };
        self.changes.insert(path.clone(), Change::new(path, node, Some(base)));
        Ok(())
    }
}

fn open(directory: BorrowedFd<'_>, path: &Path) -> Result<Option<std::os::fd::OwnedFd>> {
    match tree::open_directory(directory, path) {
        Ok(found) => Ok(Some(found)),
        Err(error) => match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Ok(None),
            _ => Err(io("open", path)(error)),
        },
    }
}

/// Opens the regular file of the workspace at a path.
pub(crate) fn open_file(directory: BorrowedFd<'_>, path: &Path) -> Result<Option<(File, Stat)>> {
    let opened = match tree::locate(directory, path) {
        Ok(Some(spot)) => tree::open_file(spot.parent.as_fd(), &spot.name),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    match opened {
        Ok(opened) => Ok(opened),
        Err(error) => match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::ACCESS) => Ok(None),
            _ => Err(io("open", path)(error)),
        },
    }
}

fn is_mode_change(set: &ChangeSet, directory: BorrowedFd<'_>, change: &Change, budget: &mut u64) -> Result<bool> {
    let (Kind::Modified, Some(node @ Node::File { size, mode, .. }), Some(base)) =
        (&change.kind, &change.node, &change.base)
    else {
        return Ok(false);
    };
    let base = base.fingerprint;
    if base.size != *size || base.mode == *mode || *size > *budget {
        return Ok(false);
    }
    let Some((file, stat)) = open_file(directory, &change.path)? else { return Ok(false) };
    if !base.matches(&Fingerprint::of(&stat)) {
        return Ok(false);
    }
    *budget -= size;
    capture::equal(file, set.content(node)).map_err(io("compare", &change.path))
}

fn rename(set: &ChangeSet, directory: BorrowedFd<'_>, changes: &mut [Change]) -> Result<()> {
    let sizes: BTreeSet<u64> = changes.iter().filter(|change| is_new(change)).map(Change::size).collect();
    let mut budget = MAX_COMPARED;
    let mut deleted: HashMap<String, Vec<PathBuf>> = HashMap::new();
    for (path, size) in candidates(directory, changes, &sizes)? {
        if size > budget {
            continue;
        }
        budget -= size;
        if let Some((file, _)) = open_file(directory, &path)? {
            deleted.entry(digest(file.take(size), &path)?).or_default().push(path);
        }
    }
    if deleted.is_empty() {
        return Ok(());
    }
    for change in changes.iter_mut().filter(|change| is_new(change)) {
        let (size, Some(node)) = (change.size(), &change.node) else { continue };
        if size > budget {
            continue;
        }
        budget -= size;
        let Some(paths) = deleted.get_mut(&digest(set.content(node), &change.path)?) else { continue };
        let named = paths.iter().position(|path| path.file_name() == change.path.file_name()).unwrap_or(0);
        if named < paths.len() {
            change.kind = Kind::Renamed { from: paths.remove(named) };
        }
    }
    Ok(())
}

fn is_new(change: &Change) -> bool {
    change.kind == Kind::Added && change.size() > 0
}

/// Returns deleted files, also in deleted directories, that have the size of a new one.
fn candidates(directory: BorrowedFd<'_>, changes: &[Change], sizes: &BTreeSet<u64>) -> Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    if sizes.is_empty() {
        return Ok(found);
    }
    for change in changes.iter().filter(|change| change.kind == Kind::Deleted) {
        let Some(base) = change.base.as_ref().map(|base| base.fingerprint) else { continue };
        let files = match base.kind {
            FileKind::File => vec![(change.path.clone(), base)],
            FileKind::Directory => match open(directory, &change.path)? {
                Some(below) => {
                    let files = Subtree::walk(below.as_fd())?.files;
                    files.into_iter().map(|(path, base)| (change.path.join(path), base)).collect()
                }
                None => continue,
            },
            _ => continue,
        };
        let fitting = files.into_iter().filter(|(_, base)| base.kind == FileKind::File && sizes.contains(&base.size));
        found.extend(fitting.map(|(path, base)| (path, base.size)));
        if found.len() >= MAX_RENAMED {
            found.truncate(MAX_RENAMED);
            break;
        }
    }
    Ok(found)
}

fn digest(content: impl Read, path: &Path) -> Result<String> {
    cofferdam_util::sha256::of_reader(content).map_err(io("compare", path))
}

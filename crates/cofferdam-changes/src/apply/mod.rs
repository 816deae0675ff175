//! Application of a change set to the workspace.
//!
//! ```text
//! files, links and directories in the order of paths -> deletions in the reverse order -> permissions of directories
//! ```
//!
//! So a rename never loses its file, and a directory is writable until its contents are complete. Each step works on
//! the opened parent directory, which is found beneath the workspace without following links.
//!
//! A killed process leaves each path as it was or as it should be, and a second application completes the first. What
//! the first left under temporary names is removed by the next application that writes to the same directory.

mod atomic_replace;
mod directory;
mod effect;
mod leftovers;
mod lock;
mod refuse;
mod remove;

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, Stat};

use self::lock::{LOCK_TIMEOUT, Lock, Sharing};
use crate::aliases::{self, Aliases};
use crate::change::{Change, Kind, Node};
use crate::conflict::{self, Cause, Conflict};
use crate::error::{ChangesError, Result, io};
use crate::fingerprint::{FileKind, Fingerprint};
use crate::glob::Globs;
use crate::own::{Own, OwnDirectories};
use crate::read::ChangeSet;
use crate::tree::{self, Spot};
use crate::{resolve, text};

pub use atomic_replace::NEW_SUFFIX;
pub(crate) use atomic_replace::Temporary;
pub(crate) use effect::effect_of;
pub use effect::{Effect, effect};
pub(crate) use refuse::guard;
pub use refuse::{Refusal, Refused};

/// Directory to which a change set may be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Workspace {
    /// The directory that the change set was captured for, by its device and inode.
    #[default]
    Recorded,
    /// Any directory. What differs from the capture is a conflict.
    Any,
}

/// Treatment of files of the workspace that a change does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// They are conflicts, and both versions are kept.
    #[default]
    Keep,
    /// Files and links are replaced by files and links. Other types are conflicts.
    Replace,
}

/// Options of an application.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    /// Paths to apply. All, if there is no pattern.
    pub only: Globs,
    /// Guarded paths that may be applied.
    pub allow: Globs,
    /// Reports what would be applied, and writes nothing.
    pub dry_run: bool,
    /// Directory to which the change set may be applied.
    pub workspace: Workspace,
    /// Treatment of files of the workspace that a change does not know.
    pub existing: Existing,
    /// Directories in which nothing is applied. Those of this user by default.
    pub own: OwnDirectories,
}

/// Result of an application.
#[derive(Debug, Default)]
pub struct Applied {
    /// Applied changes in the order of their application.
    pub applied: Vec<PathBuf>,
    /// Changes that the workspace does not allow any more. Nothing was overwritten.
    pub conflicts: Vec<Conflict>,
    /// Changes that are never applied, or only if they are allowed.
    pub refused: Vec<Refused>,
    /// Error that ended the application, and the change.
    pub failed: Option<(PathBuf, ChangesError)>,
}

/// Applies a change set to the workspace. A second application has no further effect.
///
/// One application at a time writes to a workspace. Others wait for it, up to a minute. Applications that replace
/// existing files are not in the way of each other.
///
/// # Errors
///
/// [`ChangesError::WrongDirectory`], [`ChangesError::Busy`], and those of the operating system before the first change. A later error is in
/// [`Applied::failed`].
pub fn apply(set: &ChangeSet, directory: BorrowedFd<'_>, options: &ApplyOptions) -> Result<Applied> {
    if options.workspace == Workspace::Recorded && !set.header().is_of(directory)? {
        return Err(ChangesError::WrongDirectory { workspace: text::path(&set.header().workspace) });
    }
    let lock = if options.dry_run { None } else { Some(lock(set, directory, options)?) };
    let changes = resolve::expand(set, directory)?;
    let owner = rustix::fs::fstat(directory).map_err(io("inspect", &set.header().workspace))?;
    let mut session = Application {
        set,
        directory,
        options,
        lock,
        swept: HashSet::new(),
        owner,
        aliases: Aliases::find(directory),
        own: Own::find(directory, &options.own),
        report: Applied::default(),
        modes: Vec::new(),
        planned: BTreeSet::new(),
        unlinked: HashSet::new(),
    };
    session.run(&changes);
    Ok(session.report)
}

/// Waits until no other application writes to the workspace.
fn lock(set: &ChangeSet, directory: BorrowedFd<'_>, options: &ApplyOptions) -> Result<Lock> {
    let sharing = match options.existing {
        Existing::Keep => Sharing::Exclusive,
        Existing::Replace => Sharing::Shared,
    };
    let path = || aliases::path_of(directory).unwrap_or_else(|| set.header().workspace.clone());
    match Lock::wait(directory, sharing, LOCK_TIMEOUT).map_err(|error| io("lock", &path())(error))? {
        Some(lock) => Ok(lock),
        None => Err(ChangesError::Busy { path: text::path(&path()), seconds: LOCK_TIMEOUT.as_secs() }),
    }
}

/// Returns the conflicts of a change set with the workspace as it is now.
///
/// # Errors
///
/// Those of the operating system.
pub fn conflicts(set: &ChangeSet, directory: BorrowedFd<'_>) -> Result<Vec<Conflict>> {
    let allow = Globs::new(["**"]);
    let options = ApplyOptions { allow, dry_run: true, workspace: Workspace::Any, ..ApplyOptions::default() };
    let would = apply(set, directory, &options)?;
    would.failed.map_or(Ok(would.conflicts), |(_, error)| Err(error))
}

/// Returns true if the workspace has every change already, so that an application would have no effect.
///
/// # Errors
///
/// Those of the operating system.
pub fn is_applied(set: &ChangeSet, directory: BorrowedFd<'_>) -> Result<bool> {
    for change in resolve::expand(set, directory)? {
        if effect_of(set, directory, &change)? != Effect::None {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the conflict of a new file with an existing one that may be replaced.
fn replacing(change: &Change, now: &Stat) -> Option<Cause> {
    let allowed = match change.node {
        Some(Node::Directory { .. }) => tree::kind(now) == FileType::Directory,
        _ => matches!(tree::kind(now), FileType::RegularFile | FileType::Symlink),
    };
    (!allowed).then_some(Cause::Appeared)
}

/// Returns true if a directory is new, and has the permissions that it has until its contents are complete.
fn is_unfinished(change: &Change, now: &Stat, mode: u32) -> bool {
    let is_new = change.base.as_ref().is_none_or(|base| base.fingerprint.kind != FileKind::Directory);
    let differs = mode & 0o700 != 0o700;
    let is_directory = tree::kind(now) == FileType::Directory;
    is_new && differs && is_directory && now.st_mode & 0o777 == mode & 0o777 | 0o700
}

/// Result of one change.
enum Outcome {
    Applied,
    Conflict(Cause, Option<PathBuf>),
    Refused(Refusal),
}

struct Application<'a> {
    set: &'a ChangeSet,
    directory: BorrowedFd<'a>,
    options: &'a ApplyOptions,
    /// Lock of the workspace. `None` for a dry run.
    lock: Option<Lock>,
    /// Directories from which leftovers were removed.
    swept: HashSet<PathBuf>,
    /// Properties of the workspace, whose owner gets new files.
    owner: Stat,
    aliases: Aliases,
    own: Own,
    report: Applied,
    /// Permissions of directories, which are set at the end.
    modes: Vec<(PathBuf, u32)>,
    /// Directories that a dry run would create.
    planned: BTreeSet<PathBuf>,
    /// Inodes that lost a name, and whose times changed with that.
    unlinked: HashSet<u64>,
}

impl Application<'_> {
    fn run(&mut self, changes: &[Change]) {
        let only = &self.options.only;
        let selected = changes.iter().filter(|change| only.is_empty() || only.matches(&change.path));
        let (deleted, written): (Vec<_>, Vec<_>) = selected.partition(|change| change.kind == Kind::Deleted);
        for change in written.into_iter().chain(deleted.into_iter().rev()) {
            if !self.step(change) {
                break;
            }
        }
        self.set_modes();
    }

    /// Applies one change and reports it. Returns false after an error.
    fn step(&mut self, change: &Change) -> bool {
        let path = change.path.clone();
        match self.change(change) {
            Ok(Outcome::Applied) => self.report.applied.push(path),
            Ok(Outcome::Conflict(cause, kept_as)) => self.report.conflicts.push(Conflict { path, cause, kept_as }),
            Ok(Outcome::Refused(reason)) => self.report.refused.push(Refused { path, reason }),
            Err(error) => match Refusal::of(&error) {
                Some(reason) => self.report.refused.push(Refused { path, reason }),
                None => {
                    self.report.failed = Some((path, error));
                    return false;
                }
            },
        }
        true
    }

    fn change(&mut self, change: &Change) -> Result<Outcome> {
        if self.own.concerns(self.directory, change) {
            return Ok(Outcome::Refused(Refusal::OwnDirectory));
        }
        if let Some(reason) = refuse::reason(self.set, self.directory, change, &self.options.allow, &self.aliases)? {
            return Ok(Outcome::Refused(reason));
        }
        let Some(spot) = self.locate(change)? else {
            return Ok(self.without_parent(change));
        };
        self.sweep(change, &spot);
        let now = spot.stat().map_err(io("inspect", &change.path))?;
        if let (Some(Node::Directory { mode }), Some(now)) = (&change.node, &now)
            && self.options.existing == Existing::Keep
            && is_unfinished(change, now, *mode)
        {
            self.modes.push((change.path.clone(), *mode));
            return Ok(Outcome::Applied);
        }
        if let Some(cause) = self.conflict(change, now.as_ref()) {
            return self.resolve_conflict(change, &spot, now.as_ref(), cause);
        }
        match &change.node {
            None => self.delete(change, &spot, now.as_ref()),
            Some(Node::Directory { mode }) => self.put_directory(change, &spot, now.as_ref(), *mode),
            Some(_) => self.put(change, &spot, now.as_ref()),
        }
    }

    /// Removes what killed applications left beside the file, once for each directory.
    fn sweep(&mut self, change: &Change, spot: &Spot) {
        let Some(lock) = &self.lock else { return };
        let parent = change.path.parent().unwrap_or(Path::new(""));
        if !self.swept.contains(parent) {
            leftovers::sweep(spot.parent.as_fd(), lock.is_exclusive());
            self.swept.insert(parent.to_owned());
        }
    }

    /// Finds the parent directory. Creates new directories above a selected file that were not selected themselves.
    fn locate(&mut self, change: &Change) -> Result<Option<Spot>> {
        let found = tree::locate(self.directory, &change.path).map_err(io("open", &change.path))?;
        if found.is_some() || self.options.only.is_empty() || self.options.dry_run || change.node.is_none() {
            return Ok(found);
        }
        let above: Vec<&Path> = change.path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        for path in above.into_iter().rev() {
            let Some(parent) = self.set.get(path).cloned() else { continue };
            if tree::open_directory(self.directory, path).is_ok() {
                continue;
            }
            if !matches!(self.change(&parent)?, Outcome::Applied) {
                return Ok(None);
            }
            self.report.applied.push(parent.path);
        }
        tree::locate(self.directory, &change.path).map_err(io("open", &change.path))
    }

    fn without_parent(&mut self, change: &Change) -> Outcome {
        let selects_only = !self.options.only.is_empty();
        let is_new = |path: &Path| {
            let in_set =
                || self.set.get(path).is_some_and(|parent| matches!(parent.node, Some(Node::Directory { .. })));
            self.planned.contains(path) || (selects_only && in_set())
        };
        let planned = self.options.dry_run && change.path.parent().is_some_and(is_new);
        if planned {
            self.planned.insert(change.path.clone());
        }
        // A file that is to be deleted is missing already.
        if planned || change.node.is_none() { Outcome::Applied } else { Outcome::Conflict(Cause::ParentMissing, None) }
    }

    fn conflict(&self, change: &Change, now: Option<&Stat>) -> Option<Cause> {
        if self.options.existing == Existing::Replace && change.base.is_none() {
            return replacing(change, now?);
        }
        let mut change = change.clone();
        if let (Some(base), Some(now)) = (&mut change.base, now)
            && self.unlinked.contains(&now.st_ino)
            && base.fingerprint.ctime < self.set.header().started
        {
            base.fingerprint.ctime = Fingerprint::of(now).ctime;
            return conflict::compare(&change, Some(now), i64::MAX);
        }
        conflict::compare(&change, now, self.set.header().started)
    }

    /// Keeps both versions, unless they are equal.
    fn resolve_conflict(&mut self, change: &Change, spot: &Spot, now: Option<&Stat>, cause: Cause) -> Result<Outcome> {
        if let (Some(node), Some(now)) = (&change.node, now)
            && atomic_replace::is_same(self.set, node, spot, now).map_err(io("compare", &change.path))?
        {
            return Ok(self.already(change));
        }
        match &change.node {
            Some(node @ (Node::File { .. } | Node::Symlink { .. }))
                if !self.options.dry_run && self.options.existing == Existing::Keep =>
            {
                let temporary = self.temporary(change, spot, node, now)?;
                self.keep_both(change, spot, &temporary, cause)
            }
            _ => Ok(Outcome::Conflict(cause, None)),
        }
    }

    /// Keeps both versions, unless another process wrote the same one meanwhile.
    fn keep_both(&mut self, change: &Change, spot: &Spot, temporary: &Temporary<'_>, cause: Cause) -> Result<Outcome> {
        let Some(node) = &change.node else { return Ok(Outcome::Conflict(cause, None)) };
        let now = spot.stat().map_err(io("inspect", &change.path))?;
        if let Some(now) = &now
            && atomic_replace::is_same(self.set, node, spot, now).map_err(io("compare", &change.path))?
        {
            return Ok(self.already(change));
        }
        let kept_as = match self.options.existing {
            Existing::Keep => temporary.keep_beside(self.set, node, &change.path)?,
            Existing::Replace => None,
        };
        Ok(Outcome::Conflict(cause, kept_as))
    }

    /// Reports a change that the workspace has already, also by an earlier application.
    fn already(&mut self, change: &Change) -> Outcome {
        if let Some(base) = &change.base {
            self.unlinked.insert(base.fingerprint.inode);
        }
        Outcome::Applied
    }

    fn put_directory(&mut self, change: &Change, spot: &Spot, now: Option<&Stat>, mode: u32) -> Result<Outcome> {
        let is_directory = now.is_some_and(|now| tree::kind(now) == FileType::Directory);
        if is_directory && change.base.is_none() {
            return Ok(Outcome::Applied);
        }
        if self.options.dry_run {
            self.planned.insert(change.path.clone());
            return Ok(Outcome::Applied);
        }
        if !is_directory && let Some(cause) = self.create_directory(change, spot, now, mode)? {
            return Ok(Outcome::Conflict(cause, None));
        }
        self.modes.push((change.path.clone(), mode));
        Ok(Outcome::Applied)
    }

    fn put(&mut self, change: &Change, spot: &Spot, now: Option<&Stat>) -> Result<Outcome> {
        let Some(node) = &change.node else { return Ok(Outcome::Applied) };
        let replaces_directory = now.is_some_and(|now| tree::kind(now) == FileType::Directory);
        if self.options.dry_run {
            let cause = if replaces_directory { self.remove_tree(change, spot)? } else { None };
            return Ok(cause.map_or(Outcome::Applied, |cause| Outcome::Conflict(cause, None)));
        }
        let temporary = self.temporary(change, spot, node, now)?;
        if replaces_directory {
            return match self.replace_tree(change, spot, &temporary)? {
                None => Ok(Outcome::Applied),
                Some(cause) => self.keep_both(change, spot, &temporary, cause),
            };
        }
        let again = spot.stat().map_err(io("inspect", &change.path))?;
        let cause = match self.conflict(change, again.as_ref()) {
            Some(cause) => Some(cause),
            None => temporary.rename(spot, again.is_some(), &change.path)?,
        };
        match cause {
            None => {
                self.remember(again.as_ref());
                Ok(Outcome::Applied)
            }
            Some(cause) => self.keep_both(change, spot, &temporary, cause),
        }
    }

    fn remember(&mut self, removed: Option<&Stat>) {
        if let Some(stat) = removed.filter(|stat| stat.st_nlink > 1) {
            self.unlinked.insert(stat.st_ino);
        }
    }

    fn delete(&mut self, change: &Change, spot: &Spot, now: Option<&Stat>) -> Result<Outcome> {
        let Some(now) = now else { return Ok(self.already(change)) };
        if tree::kind(now) == FileType::Directory {
            let cause = self.remove_tree(change, spot)?;
            return Ok(cause.map_or(Outcome::Applied, |cause| Outcome::Conflict(cause, None)));
        }
        if !self.options.dry_run {
            rustix::fs::unlinkat(&spot.parent, &spot.name, AtFlags::empty()).map_err(io("delete", &change.path))?;
            self.remember(Some(now));
        }
        Ok(Outcome::Applied)
    }

    /// Sets the permissions of directories, the deepest first. A set-group-ID bit stays as the host has it.
    fn set_modes(&mut self) {
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            let set = || {
                let directory = tree::open_directory(self.directory, &path)?;
                let special = rustix::fs::fstat(&directory)?.st_mode & 0o7000;
                rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(mode & 0o777 | special))?;
                Ok::<_, std::io::Error>(())
            };
            if let Err(error) = set() {
                let error = io("set the permissions of", &path)(error);
                self.report.failed.get_or_insert((path, error));
            }
        }
    }
}

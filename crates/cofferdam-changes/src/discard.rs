//! Removal of a part of a change set: what remains, and its new file.
//!
//! The remainder applies as before. A pattern that matches a directory matches everything below it, so no remaining
//! entry loses the directory that it is in. Two kinds of changes reach further than their path:
//!
//! - A renamed file is a new file and a deletion. If the new file is discarded, its deletion is too, or the contents
//!   would be lost. The deletion stays if the workspace has the new file already, so that the rest of an application of
//!   selected paths can be applied later.
//!   An applied change is removed alone.
//! - A cleared directory deletes what the change set does not contain. If a part of it is discarded, the deletions that
//!   remain are written down one by one.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::apply::{Effect, effect_of};
use crate::change::{Change, Kind, Node};
use crate::error::{ChangesError, Result};
use crate::glob::Globs;
use crate::layer::LayerWriter;
use crate::read::ChangeSet;
use crate::render::{is_half_of_rename, renamed};
use crate::resolve;

/// Changes that are removed from a change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discarded {
    /// Paths of the removed changes, as in a review: a renamed file is one.
    pub paths: Vec<PathBuf>,
    /// Number of changes that remain, counted in the same way. The change set itself is removed with its last change.
    pub remaining: usize,
}

/// Returns what a removal of matching paths would remove.
///
/// # Errors
///
/// [`ChangesError::NoMatch`], and those of the operating system.
pub fn would_discard(set: &ChangeSet, directory: BorrowedFd<'_>, only: &Globs) -> Result<Discarded> {
    Remainder::of(set, directory, only).map(|rest| rest.discarded)
}

/// A change set without the removed changes.
#[derive(Debug)]
pub(crate) struct Remainder<'a> {
    set: &'a ChangeSet,
    changes: Vec<Change>,
    cleared: Vec<PathBuf>,
    pub discarded: Discarded,
}

impl<'a> Remainder<'a> {
    /// Removes matching paths. `directory` is the workspace.
    pub fn of(set: &'a ChangeSet, directory: BorrowedFd<'_>, only: &Globs) -> Result<Self> {
        let all = resolve::expand_renamed(set, directory)?;
        let mut dropped: BTreeSet<&Path> =
            all.iter().map(|change| change.path.as_path()).filter(|path| only.matches(path)).collect();
        for change in &all {
            let Kind::Renamed { from } = &change.kind else { continue };
            if dropped.contains(change.path.as_path()) && effect_of(set, directory, change)? != Effect::None {
                dropped.extend(deletion_of(&all, from));
            }
        }
        if dropped.is_empty() {
            return Err(ChangesError::NoMatch);
        }
        let (lost, cleared): (Vec<_>, Vec<_>) = set.cleared().iter().cloned().partition(|path| only.matches(path));
        let gone = dropped.iter().copied().chain(lost.iter().map(PathBuf::as_path)).collect();
        Ok(Self::cut(set, &all, &dropped, cleared, &gone))
    }

    /// Removes applied changes. A directory stays while a change in it does, so that the change still has its directory if
    /// the workspace loses it meanwhile.
    pub fn unapplied(set: &'a ChangeSet, directory: BorrowedFd<'_>, applied: &[PathBuf]) -> Result<Self> {
        let all = resolve::expand_renamed(set, directory)?;
        let gone: BTreeSet<&Path> = applied.iter().map(PathBuf::as_path).collect();
        let rest: BTreeSet<&Path> =
            all.iter().map(|change| change.path.as_path()).filter(|path| !gone.contains(path)).collect();
        let dropped = all.iter().map(|change| change.path.as_path());
        let dropped = dropped.filter(|path| gone.contains(path) && !reaches(&rest, path)).collect();
        Ok(Self::cut(set, &all, &dropped, set.cleared().to_vec(), &gone))
    }

    /// Removes `dropped` from `all` changes. If one of `gone` is in a directory of `cleared`, the deletions that remain
    /// replace these directories.
    fn cut(
        set: &'a ChangeSet,
        all: &[Change],
        dropped: &BTreeSet<&Path>,
        cleared: Vec<PathBuf>,
        gone: &BTreeSet<&Path>,
    ) -> Self {
        let (out, rest): (Vec<_>, Vec<_>) =
            all.iter().cloned().partition(|change| dropped.contains(change.path.as_path()));
        let is_cut = cleared.iter().any(|path| reaches(gone, path));
        let discarded = Discarded { paths: reviewed(&out).map(|change| change.path.clone()).collect(), remaining: 0 };
        let discarded = Discarded { remaining: reviewed(&rest).count(), ..discarded };
        let (changes, cleared) = if is_cut {
            (rest, Vec::new())
        } else {
            let retained = set.changes().iter().filter(|change| !dropped.contains(change.path.as_path()));
            (retained.cloned().collect(), cleared)
        };
        Self { set, changes, cleared, discarded }
    }

    /// Returns true if nothing remains.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.cleared.is_empty()
    }

    /// Writes the remaining change set. A directory precedes its contents.
    pub fn write(&self, out: impl Write) -> Result<()> {
        let mut writer = LayerWriter::new(out, self.set.header())?;
        let mut cleared = self.cleared.iter().peekable();
        for change in &self.changes {
            while let Some(path) = cleared.next_if(|path| **path < change.path) {
                writer.opaque(path)?;
            }
            let (path, base) = (&change.path, change.base.as_ref());
            match &change.node {
                None => writer.whiteout(path, base)?,
                Some(Node::Directory { mode }) => writer.directory(path, *mode, base)?,
                Some(Node::Symlink { target }) => writer.symlink(path, target, base)?,
                Some(node @ Node::File { size, mode, .. }) => {
                    writer.file(path, *mode, *size, self.set.content(node), base)?;
                }
            }
        }
        for path in cleared {
            writer.opaque(path)?;
        }
        writer.finish().map(drop)
    }
}

/// Returns true if one of the paths is this one or beneath it. What is beneath a path follows it in the order of paths.
fn reaches(paths: &BTreeSet<&Path>, path: &Path) -> bool {
    paths.range(path..).next().is_some_and(|next| next.starts_with(path))
}

/// Returns the path of the deletion that deletes a renamed file: its own, or that of a directory above it.
fn deletion_of<'a>(changes: &'a [Change], from: &Path) -> Option<&'a Path> {
    from.ancestors().find_map(|path| {
        let at = changes.binary_search_by(|change| change.path.as_path().cmp(path)).ok()?;
        changes.get(at).filter(|change| change.node.is_none()).map(|change| change.path.as_path())
    })
}

/// Returns changes as a review counts them.
fn reviewed(changes: &[Change]) -> impl Iterator<Item = &Change> {
    let renamed = renamed(changes);
    changes.iter().filter(move |change| !is_half_of_rename(change, &renamed))
}

//! Differences between two versions of a file, line by line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self as std_io, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use similar::{Algorithm, DiffOp, DiffTag};

use crate::aliases::Aliases;
use crate::apply::Effect;
use crate::change::{Change, Kind, Node};
use crate::conflict::Cause;
use crate::error::{Result, io};
use crate::read::ChangeSet;
use crate::{apply, resolve, tree};

/// Default for the maximum size of a text whose lines are compared.
pub const MAX_TEXT: u64 = 1 << 20;
/// Maximum size of all texts of a change set whose lines are compared.
const MAX_TEXTS: u64 = 64 << 20;
/// Time for the comparison of one file. Afterwards the rest counts as replaced.
const DIFF_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for the comparison of all files.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Limits of all comparisons of a change set.
#[derive(Debug)]
struct Budget {
    max_text: u64,
    bytes: u64,
    deadline: Instant,
}

impl Budget {
    fn new(max_text: u64) -> Self {
        Self { max_text, bytes: MAX_TEXTS, deadline: Instant::now() + TOTAL_TIMEOUT }
    }
}

/// Comparison of a change set with the workspace, change by change.
pub(crate) struct Review<'a> {
    set: &'a ChangeSet,
    directory: BorrowedFd<'a>,
    budget: Budget,
    conflicts: HashMap<PathBuf, Cause>,
    aliases: Aliases,
}

impl<'a> Review<'a> {
    pub fn new(set: &'a ChangeSet, directory: BorrowedFd<'a>, max_text: u64) -> Result<Self> {
        let conflicts = apply::conflicts(set, directory)?;
        let conflicts = conflicts.into_iter().map(|conflict| (conflict.path, conflict.cause)).collect();
        let aliases = Aliases::find(directory);
        Ok(Self { set, directory, budget: Budget::new(max_text), conflicts, aliases })
    }

    /// Compares a change with the workspace.
    pub fn detail(&mut self, change: &Change) -> Result<Detail> {
        let body = body(self.set, self.directory, change, &mut self.budget)?;
        let conflict = self.conflicts.get(&change.path).copied();
        let guarded = apply::guard(self.set, self.directory, change, &self.aliases);
        let is_applied = conflict.is_none() && self.is_applied(change);
        Ok(Detail { body, conflict, guarded, is_applied })
    }

    /// Returns true if the workspace has a change already. Contents that are too large to show are not compared, and
    /// what a link hides is not the change.
    fn is_applied(&self, change: &Change) -> bool {
        let is_small = change.size() <= self.budget.max_text;
        is_small && apply::effect_of(self.set, self.directory, change).is_ok_and(|effect| effect == Effect::None)
    }
}

/// Differences between the contents before and after a change.
#[derive(Debug)]
pub(crate) enum Body {
    /// No contents, or the same ones.
    None,
    /// Lines of both versions.
    Text(Lines),
    /// Sizes of two versions of which one is not text.
    Binary(u64, u64),
    /// Sizes of two versions that are too large to compare.
    Large(u64, u64),
    /// Targets of a link before and after. One that did not exist is empty.
    Target(Vec<u8>, Vec<u8>),
}

/// Both versions of a text and what to do to get from one to the other.
#[derive(Debug)]
pub(crate) struct Lines {
    pub old: Vec<u8>,
    pub new: Vec<u8>,
    pub ops: Vec<DiffOp>,
}

impl Lines {
    /// Returns the numbers of inserted and of deleted lines.
    pub fn counts(&self) -> (usize, usize) {
        let changed = self.ops.iter().filter(|op| op.tag() != DiffTag::Equal);
        changed.fold((0, 0), |(new, old), op| (new + op.new_range().len(), old + op.old_range().len()))
    }
}

/// A change with everything that a review shows.
#[derive(Debug)]
pub(crate) struct Detail {
    pub body: Body,
    pub conflict: Option<Cause>,
    pub guarded: Option<&'static str>,
    /// True if the workspace has the change already.
    pub is_applied: bool,
}

fn body(set: &ChangeSet, directory: BorrowedFd<'_>, change: &Change, budget: &mut Budget) -> Result<Body> {
    if matches!(change.kind, Kind::ModeChanged | Kind::Renamed { .. }) {
        return Ok(Body::None);
    }
    let Previous { target, file } = previous(directory, change)?;
    match &change.node {
        Some(Node::Symlink { target: new }) => Ok(Body::Target(target, new.as_encoded_bytes().to_vec())),
        _ if !target.is_empty() => Ok(Body::Target(target, Vec::new())),
        None | Some(Node::Directory { .. }) if file.is_none() => Ok(Body::None),
        node => contents(set, change, file, node.as_ref(), budget),
    }
}

/// A link or a file of the workspace before a change.
#[derive(Default)]
struct Previous {
    /// Target of the link.
    target: Vec<u8>,
    /// Regular file and its size.
    file: Option<(File, u64)>,
}

/// Returns the file of the workspace at the path of a change.
fn previous(directory: BorrowedFd<'_>, change: &Change) -> Result<Previous> {
    if change.base.is_none() {
        return Ok(Previous::default());
    }
    if let Ok(Some(spot)) = tree::locate(directory, &change.path)
        && spot.stat().map_err(io("inspect", &change.path))?.is_some_and(|stat| tree::kind(&stat) == FileType::Symlink)
    {
        let target = tree::target(spot.parent.as_fd(), &spot.name).map_err(io("read", &change.path))?;
        return Ok(Previous { target: target.into_encoded_bytes(), file: None });
    }
    let file = resolve::open_file(directory, &change.path)?;
    Ok(Previous { target: Vec::new(), file: file.map(|(file, stat)| (file, tree::size(&stat))) })
}

fn contents(
    set: &ChangeSet,
    change: &Change,
    old: Option<(File, u64)>,
    node: Option<&Node>,
    budget: &mut Budget,
) -> Result<Body> {
    let (old_size, new_size) = (old.as_ref().map_or(0, |(_, size)| *size), change.size());
    let sum = old_size.saturating_add(new_size);
    if old_size.max(new_size) > budget.max_text || sum > budget.bytes {
        return Ok(Body::Large(old_size, new_size));
    }
    budget.bytes -= sum;
    let old = old.map(|(file, size)| load(file.take(size), &change.path)).transpose()?.unwrap_or_default();
    let new = node.map(|node| load(set.content(node), &change.path)).transpose()?.unwrap_or_default();
    if old.contains(&0) || new.contains(&0) {
        return Ok(Body::Binary(old_size, new_size));
    }
    let deadline = budget.deadline.min(Instant::now() + DIFF_TIMEOUT);
    let ops = compare(&split(&old), &split(&new), deadline);
    Ok(Body::Text(Lines { ops, old, new }))
}

fn load(mut content: impl Read, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(io::<std_io::Error>("read", path))?;
    Ok(bytes)
}

/// Returns the lines of a text, with their line feeds.
pub(crate) fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn compare(old: &[&[u8]], new: &[&[u8]], deadline: Instant) -> Vec<DiffOp> {
    similar::capture_diff_slices_deadline(Algorithm::Myers, old, new, Some(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(old: &str, new: &str) -> Lines {
        let (old, new) = (old.as_bytes().to_vec(), new.as_bytes().to_vec());
        let deadline = Instant::now() + DIFF_TIMEOUT;
        let ops = compare(&split(&old), &split(&new), deadline);
        Lines { ops, old, new }
    }

    #[test]
    fn inserted_and_deleted_lines_are_counted() {
        for (old, new, counts) in [
            ("", "", (0, 0)),
            ("a\n", "", (0, 1)),
            ("", "a\nb", (2, 0)),
            ("a\nb\nc\n", "a\nx\nc\n", (1, 1)),
            ("a", "a\n", (1, 1)),
        ] {
            assert_eq!(lines(old, new).counts(), counts, "{old:?} {new:?}");
        }
    }

    #[test]
    fn hostile_texts_take_bounded_time() {
        let numbers = |of: &dyn Fn(usize) -> usize| (0..150_000).map(|line| format!("{:x}\n", of(line))).collect();
        let random = |seed: usize| numbers(&move |line| line * seed % 7919);
        let halves: String = (0..150_000).step_by(2).map(|line| format!("{line:x}\n")).collect();
        let repeated = |length: usize| ("a\n".repeat(length) + "b\n").repeat(100_000 / length);
        let pairs: [(String, String); 5] = [
            (random(3), random(5)),
            (numbers(&|line| line), halves),
            (repeated(3), repeated(5)),
            ("a\n".repeat(500_000), "a\n".repeat(300_000)),
            ("a\nb\n".repeat(250_000), "b\na\na\n".repeat(150_000)),
        ];
        for (old, new) in pairs {
            for (old, new) in [(&old, &new), (&new, &old)] {
                let begun = Instant::now();
                lines(old, new);
                assert!(begun.elapsed() < Duration::from_secs(30));
            }
        }
    }
}

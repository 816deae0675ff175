//! A review of a change set as text, in the style of `git diff`.

use std::collections::HashSet;
use std::fmt;
use std::io::{self as std_io, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use similar::{DiffOp, DiffTag};

use crate::change::{Change, Kind, Node};
use crate::diff::{self, Body, Detail, Lines, MAX_TEXT, Review};
use crate::error::{Result, io};
use crate::fingerprint::FileKind;
use crate::read::ChangeSet;
use crate::resolve::resolve;
use crate::text;

/// Default for the maximum size of a review.
const MAX_REVIEW: u64 = 64 << 20;

/// Colors in a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Color {
    /// Plain text.
    #[default]
    Never,
    /// Escape sequences for a terminal.
    Always,
}

/// Options of a review.
#[derive(Debug, Clone, Copy)]
pub struct RenderOptions {
    /// Colors.
    pub color: Color,
    /// Number of unchanged lines around a change.
    pub context: usize,
    /// Maximum size of a text whose lines are shown, in bytes.
    pub max_text: u64,
    /// Maximum size of a review, in bytes. Changes after that are only counted.
    pub max_review: u64,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { color: Color::Never, context: 3, max_text: MAX_TEXT, max_review: MAX_REVIEW }
    }
}

/// Numbers of changed files and lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "sandbox", derive(schemars::JsonSchema))]
pub struct Stat {
    /// Number of changed files. A renamed file is one.
    pub files: usize,
    /// Number of inserted lines.
    pub insertions: usize,
    /// Number of deleted lines.
    pub deletions: usize,
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let Self { files, insertions, deletions } = *self;
        write!(f, "{files} file{} changed", plural(files))?;
        if insertions > 0 {
            write!(f, ", {insertions} insertion{}(+)", plural(insertions))?;
        }
        if deletions > 0 {
            write!(f, ", {deletions} deletion{}(-)", plural(deletions))?;
        }
        Ok(())
    }
}

/// Writes a review of a change set, compared with the workspace as it is now. A terminal interprets nothing of what the
/// guest wrote.
///
/// # Errors
///
/// Those of `out` and of the operating system.
pub fn render(
    set: &ChangeSet,
    directory: BorrowedFd<'_>,
    options: &RenderOptions,
    out: &mut dyn Write,
) -> Result<Stat> {
    let mut review = Review::new(set, directory, options.max_text)?;
    let mut stat = Stat::default();
    let mut printer = Printer { out: Counted { out, written: 0 }, options };
    let mut hidden = 0;
    let changes = resolve(set, directory)?;
    let renamed = renamed(&changes);
    for change in changes.iter().filter(|change| !is_half_of_rename(change, &renamed)) {
        let detail = review.detail(change)?;
        stat.add(&detail);
        if printer.out.written > options.max_review {
            hidden += 1;
            continue;
        }
        printer.change(change, &detail).map_err(io("write the review of", &change.path))?;
    }
    if hidden > 0 {
        let line = format!("{hidden} more changes are not shown: the review is too long");
        printer.line(Style::Warning, &line).map_err(io("write the review of", Path::new(".")))?;
    }
    writeln!(printer.out, "{stat}").map_err(io("write the review of", Path::new(".")))?;
    Ok(stat)
}

/// Returns the paths whose deletions are shown as a part of a renamed file.
pub(crate) fn renamed(changes: &[Change]) -> HashSet<&Path> {
    let from = changes.iter().filter_map(|change| match &change.kind {
        Kind::Renamed { from } => Some(from.as_path()),
        _ => None,
    });
    from.collect()
}

pub(crate) fn is_half_of_rename(change: &Change, renamed: &HashSet<&Path>) -> bool {
    change.kind == Kind::Deleted && renamed.contains(change.path.as_path())
}

impl Stat {
    pub(crate) fn add(&mut self, detail: &Detail) {
        self.files += 1;
        if let Body::Text(lines) = &detail.body {
            let (insertions, deletions) = lines.counts();
            self.insertions += insertions;
            self.deletions += deletions;
        }
    }
}

#[derive(Clone, Copy)]
enum Style {
    Head,
    Hunk,
    Old,
    New,
    Warning,
}

struct Printer<'a> {
    out: Counted<'a>,
    options: &'a RenderOptions,
}

/// A writer that counts bytes.
struct Counted<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std_io::Result<usize> {
        let length = self.out.write(bytes)?;
        self.written = self.written.saturating_add(length as u64);
        Ok(length)
    }

    fn flush(&mut self) -> std_io::Result<()> {
        self.out.flush()
    }
}

impl Printer<'_> {
    fn change(&mut self, change: &Change, detail: &Detail) -> std_io::Result<()> {
        let path = text::path(&change.path);
        let from = match &change.kind {
            Kind::Renamed { from } => text::path(from),
            _ => path.clone(),
        };
        self.line(Style::Head, &format!("diff a/{from} b/{path}"))?;
        for line in head(change) {
            self.line(Style::Head, &line)?;
        }
        if detail.is_applied {
            self.line(Style::Hunk, "applied: the directory has this change already")?;
        }
        if let Some(cause) = detail.conflict {
            self.line(Style::Warning, &format!("conflict: {cause}"))?;
        }
        if let Some(reason) = detail.guarded {
            self.line(Style::Warning, &format!("guarded: {reason}; it is applied only if it is allowed by name"))?;
        }
        self.body(change, detail, &path)
    }

    fn body(&mut self, change: &Change, detail: &Detail, path: &str) -> std_io::Result<()> {
        match &detail.body {
            Body::None => Ok(()),
            Body::Binary(old, new) => self.sizes("Binary", path, change, *old, *new),
            Body::Large(old, new) => self.sizes("Large", path, change, *old, *new),
            Body::Target(old, new) => {
                for (style, sign, target) in [(Style::Old, '-', old), (Style::New, '+', new)] {
                    if !target.is_empty() {
                        self.line(style, &format!("{sign}link to {}", text::name(target)))?;
                    }
                }
                Ok(())
            }
            Body::Text(lines) => {
                if lines.ops.iter().any(|op| op.tag() != DiffTag::Equal) {
                    let none = "/dev/null".to_owned();
                    let old = if change.base.is_some() { format!("a/{path}") } else { none.clone() };
                    let new = if change.node.is_some() { format!("b/{path}") } else { none };
                    self.line(Style::Head, &format!("--- {old}"))?;
                    self.line(Style::Head, &format!("+++ {new}"))?;
                }
                self.hunks(lines)
            }
        }
    }

    fn sizes(&mut self, what: &str, path: &str, change: &Change, old: u64, new: u64) -> std_io::Result<()> {
        let text = match (&change.base, &change.node) {
            (None, _) => format!("{what} file {path} added: {}", text::size(new)),
            (_, None) => format!("{what} file {path} deleted: {}", text::size(old)),
            _ => format!("{what} file {path} changed: {} -> {}", text::size(old), text::size(new)),
        };
        writeln!(self.out, "{text}")
    }

    fn hunks(&mut self, lines: &Lines) -> std_io::Result<()> {
        let (old, new) = (diff::split(&lines.old), diff::split(&lines.new));
        for hunk in similar::group_diff_ops(lines.ops.clone(), self.options.context) {
            if hunk.iter().all(|op| op.tag() == DiffTag::Equal) {
                continue;
            }
            self.line(Style::Hunk, &hunk_head(&hunk))?;
            for op in &hunk {
                if op.tag() == DiffTag::Equal {
                    self.lines(None, ' ', old.get(op.old_range()).unwrap_or_default())?;
                } else {
                    self.lines(Some(Style::Old), '-', old.get(op.old_range()).unwrap_or_default())?;
                    self.lines(Some(Style::New), '+', new.get(op.new_range()).unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }

    fn lines(&mut self, style: Option<Style>, sign: char, lines: &[&[u8]]) -> std_io::Result<()> {
        for line in lines {
            let (line, ended) = line.strip_suffix(b"\n").map_or((*line, false), |line| (line, true));
            let shown = format!("{sign}{}", text::line(line));
            match style {
                Some(style) => self.line(style, &shown)?,
                None => writeln!(self.out, "{shown}")?,
            }
            if !ended {
                writeln!(self.out, "\\ No newline at end of file")?;
            }
        }
        Ok(())
    }

    fn line(&mut self, style: Style, line: &str) -> std_io::Result<()> {
        if self.options.color == Color::Never {
            return writeln!(self.out, "{line}");
        }
        let code = match style {
            Style::Head => "1",
            Style::Hunk => "36",
            Style::Old => "31",
            Style::New => "32",
            Style::Warning => "1;33",
        };
        writeln!(self.out, "\u{1b}[{code}m{line}\u{1b}[0m")
    }
}

/// Describes types and permissions before and after a change.
fn head(change: &Change) -> Vec<String> {
    let old = change.base.as_ref().map(|base| (base.fingerprint.kind, base.fingerprint.mode));
    let new = change.node.as_ref().map(|node| (node.kind(), node.mode().unwrap_or(0o777)));
    let mut lines = match (old, new) {
        (None, None) => vec!["deleted".to_owned()],
        (None, Some((kind, mode))) => vec![format!("new {} mode {mode:o}", kind.name())],
        (Some((kind, mode)), None) => vec![format!("deleted {} mode {mode:o}", kind.name())],
        (Some((was, mode)), Some((kind, now))) if was != kind => {
            vec![format!("old {} mode {mode:o}", was.name()), format!("new {} mode {now:o}", kind.name())]
        }
        (Some((_, mode)), Some((kind, now))) if mode != now && kind != FileKind::Symlink => {
            vec![format!("old mode {mode:o}"), format!("new mode {now:o}")]
        }
        _ => Vec::new(),
    };
    if let Some(tree) = change.base.as_ref().and_then(|base| base.tree.as_ref()) {
        lines.push(format!("deleted with {} files below it", tree.files));
    }
    if let Kind::Renamed { from } = &change.kind {
        lines.push(format!("rename from {}", text::path(from)));
        lines.push(format!("rename to {}", text::path(&change.path)));
    }
    if let Some(Node::File { mode, .. } | Node::Directory { mode }) = change.node
        && mode & 0o6000 != 0
    {
        lines.push("warning: set-user-ID or set-group-ID, which is never applied".to_owned());
    }
    lines
}

fn hunk_head(hunk: &[DiffOp]) -> String {
    let range = |begin: usize, end: usize| match end - begin {
        1 => format!("{}", begin + 1),
        0 => format!("{begin},0"),
        length => format!("{},{length}", begin + 1),
    };
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return String::new() };
    let old = range(first.old_range().start, last.old_range().end);
    let new = range(first.new_range().start, last.new_range().end);
    format!("@@ -{old} +{new} @@")
}

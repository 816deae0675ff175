//! `cofferdam changes`: kept changes of copy-on-write workspaces.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use cofferdam::{ByteSize, Error, Result};
use cofferdam_changes::{
    Applied, ApplyOptions, Bounds, ChangeSet, ChangesError, Discarded, Effect, Globs, Id, RenderOptions,
    StoredContents, StoredSet, Workspace, apply, document, effect, open_saved, render, text, would_discard,
};
use cofferdam_linux::named;
use serde_json::json;

use super::review::{self, failed};
use crate::args::{
    ApplyChangesArgs, ChangesArgs, ChangesCommand, DiscardChangesArgs, ListChangesArgs, PruneChangesArgs,
    ShowChangesArgs,
};
use crate::report::{self, Form, READER_GONE};
use crate::style::Tone;
use crate::terminal::ago;

/// Runs the command.
pub fn main(args: &ChangesArgs) -> u8 {
    let (done, is_json) = match &args.command {
        ChangesCommand::Ls(args) => (list(args), args.json),
        ChangesCommand::Show(args) => (show(args), args.json),
        ChangesCommand::Apply(args) => (apply_to(args), args.json),
        ChangesCommand::Discard(args) => (discard(args), false),
        ChangesCommand::Prune(args) => (prune(args), false),
    };
    report::finish(done, Form::of(is_json))
}

fn list(args: &ListChangesArgs) -> Result<u8> {
    let stored = review::store()?.list().map_err(failed)?;
    if args.json {
        let rows = stored.iter().map(|stored| {
            json!({
                "id": stored.id.as_str(), "bytes": stored.bytes,
                "time": stored.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
                "workspace": stored.contents.as_ref().map(|contents| contents.workspace.to_string_lossy()),
                "files": stored.contents.as_ref().map(|contents| contents.changes),
            })
        });
        return Ok(report::printed(report::document(&json!({"changes": rows.collect::<Vec<_>>()})), 0));
    }
    let lines: String = stored.iter().map(|stored| format!("{}\n", row(stored))).collect();
    Ok(report::printed(report::print(&lines), 0))
}

fn row(stored: &StoredSet) -> String {
    let age = ago(stored.time.elapsed().unwrap_or_default());
    let size = ByteSize::from_bytes(stored.bytes);
    let contents = match &stored.contents {
        Some(StoredContents { changes, workspace }) => {
            let files = if *changes == 1 { "file " } else { "files" };
            format!("{changes:>6} {files}  {}", text::path(workspace))
        }
        None => "damaged".to_owned(),
    };
    format!("{}  {age:>9}  {size:>8}  {contents}", stored.id)
}

fn show(args: &ShowChangesArgs) -> Result<u8> {
    let Found { set, directory, .. } = find(&selected(args.changes.as_deref())?, args.to.as_deref())?;
    let set = set.select(Globs::new(&args.only));
    if args.json || args.stat {
        let document = document(&set, directory.as_fd()).map_err(failed)?;
        if args.json {
            return Ok(report::printed(report::document(&json!(document)), 0));
        }
        let mut lines = String::new();
        for change in &document.changes {
            let kind = if change.is_applied { "applied" } else { &change.kind };
            let lines_changed = match (change.insertions, change.deletions) {
                (Some(insertions), Some(deletions)) => format!("+{insertions} -{deletions}"),
                _ => String::new(),
            };
            let from =
                change.from.as_ref().map(|from| format!("{} => ", text::line(from.as_bytes()))).unwrap_or_default();
            let path = format!("{from}{}", text::line(change.path.as_bytes()));
            lines.push_str(&format!("{kind:<13} {lines_changed:>11}  {path}\n"));
        }
        lines.push_str(&format!("{}\n", document.summary));
        return Ok(report::printed(report::print(&lines), 0));
    }
    let options = RenderOptions { color: review::color(), ..RenderOptions::default() };
    let mut stdout = std::io::stdout().lock();
    match render(&set, directory.as_fd(), &options, &mut stdout) {
        Err(ChangesError::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(READER_GONE),
        printed => printed.map(|_| 0).map_err(failed),
    }
}

fn apply_to(args: &ApplyChangesArgs) -> Result<u8> {
    let found = find(&selected(args.changes.as_deref())?, args.to.as_deref())?;
    let options = ApplyOptions {
        only: Globs::new(&args.only),
        allow: Globs::new(&args.allow),
        dry_run: args.dry_run,
        workspace: if args.to.is_some() { Workspace::Any } else { Workspace::Recorded },
        ..ApplyOptions::default()
    };
    let applied = apply(&found.set, found.directory.as_fd(), &options).map_err(failed)?;
    let is_whole = review::applied_whole(&applied);
    if is_whole && applied.applied.is_empty() && !args.only.is_empty() {
        return Err(failed(ChangesError::NoMatch));
    }
    let status = u8::from(!is_whole);
    let is_all = is_whole && args.only.is_empty();
    let is_forgotten = args.to.is_none() && !args.dry_run && (is_all || !applied.applied.is_empty());
    let id = found.id.as_ref().filter(|_| is_forgotten);
    let forgotten = id.map_or(Ok(0), |id| forget_applied(id, &found, &applied, is_all));
    if args.json {
        let mut document = review::applied_document(&applied);
        document["dry_run"] = json!(args.dry_run);
        forgotten?;
        return Ok(report::printed(report::document(&document), status));
    }
    if args.dry_run {
        return print_plan(&found, &applied).map(|printed| report::printed(printed, status));
    }
    review::print_applied(&applied, &found.path);
    if let (Some(id), remaining @ 1..) = (id, forgotten?) {
        let plural = if remaining == 1 { "change remains" } else { "changes remain" };
        report::remark(&format!("{remaining} {plural} in {id}"), Tone::Good);
    }
    Ok(status)
}

/// Removes applied changes from the store. Returns the number of those that remain.
fn forget_applied(id: &Id, found: &Found, applied: &Applied, is_all: bool) -> Result<usize> {
    let store = review::store()?;
    let remaining = if is_all {
        store.discard(id.as_str()).map(|_| 0)
    } else {
        let shrunk = store.discard_applied(id.as_str(), found.directory.as_fd(), &applied.applied);
        shrunk.map(|(_, discarded)| discarded.remaining)
    };
    match remaining {
        // Another application of the same changes has removed them.
        Err(ChangesError::NotFound { .. }) => Ok(0),
        remaining => remaining.map_err(failed),
    }
}

/// Prints what an application would do with each path.
fn print_plan(found: &Found, applied: &Applied) -> Result<std::io::Result<()>> {
    let mut lines = String::new();
    let mut line = |action: &str, path: &Path, reason: Option<String>| {
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        lines.push_str(&format!("{action:<15} {}{reason}\n", text::path(path)));
    };
    let mut count = 0;
    for path in &applied.applied {
        let effect = effect(&found.set, found.directory.as_fd(), path).map_err(failed)?;
        count += usize::from(effect != Effect::None);
        line(action(effect), path, None);
    }
    for conflict in &applied.conflicts {
        line("conflict", &conflict.path, Some(conflict.cause.to_string()));
    }
    for refused in &applied.refused {
        line("not applied", &refused.path, Some(refused.reason.to_string()));
    }
    if let Some((path, error)) = &applied.failed {
        line("stop", path, Some(error.to_string()));
    }
    let printed = report::print(&lines);
    let plural = if count == 1 { "" } else { "s" };
    let path = text::path(&found.path);
    report::remark(&format!("would apply {count} change{plural} to {path}; nothing was written"), Tone::Good);
    Ok(printed)
}

fn action(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "unchanged",
        Effect::Add => "add",
        Effect::Replace => "replace",
        Effect::SetMode => "set permissions",
        Effect::Delete => "delete",
    }
}

fn discard(args: &DiscardChangesArgs) -> Result<u8> {
    for changes in &args.changes {
        if !args.only.is_empty() {
            if let Err(error) = discard_only(changes, args)? {
                return Ok(report::printed(Err(error), 0));
            }
            continue;
        }
        let discarded = match is_file(changes) {
            true => discard_file(Path::new(changes), args.dry_run)?,
            false => discard_change_set(changes, args.dry_run)?,
        };
        if !args.dry_run {
            report::remark(&format!("discarded {discarded}"), Tone::Good);
        } else if let Err(error) = report::print(&format!("would discard {discarded}\n")) {
            return Ok(report::printed(Err(error), 0));
        }
    }
    Ok(0)
}

/// Deletes the selected paths of one change set, or prints them in a dry run. Returns the result of printing.
fn discard_only(changes: &str, args: &DiscardChangesArgs) -> Result<std::io::Result<()>> {
    let Found { set, id, directory, .. } = find(changes, args.to.as_deref())?;
    let only = Globs::new(&args.only);
    let name = id.as_ref().map_or_else(|| text::path(Path::new(changes)), ToString::to_string);
    let described = |discarded: &Discarded| {
        let count = discarded.paths.len();
        let plural = if count == 1 { "" } else { "s" };
        match discarded.remaining {
            0 => format!("{count} change{plural} of {name}: nothing is left, and it is deleted"),
            left => format!("{count} change{plural} of {name}; {left} of its changes remain"),
        }
    };
    if args.dry_run {
        let discarded = would_discard(&set, directory.as_fd(), &only).map_err(failed)?;
        let lines: String =
            discarded.paths.iter().map(|path| format!("discard         {}\n", text::path(path))).collect();
        let printed = report::print(&lines);
        report::remark(&format!("would discard {}", described(&discarded)), Tone::Good);
        return Ok(printed);
    }
    let discarded = match &id {
        Some(id) => {
            review::store()?.discard_only(id.as_str(), directory.as_fd(), &only).map(|(_, discarded)| discarded)
        }
        None => open_saved(Path::new(changes), &Bounds::default())
            .and_then(|saved| saved.discard_only(directory.as_fd(), &only)),
    };
    report::remark(&format!("discarded {}", described(&discarded.map_err(failed)?)), Tone::Good);
    Ok(Ok(()))
}

/// Deletes kept changes. Returns their identifier. A dry run returns their contents, too.
fn discard_change_set(id: &str, is_dry: bool) -> Result<String> {
    let store = review::store()?;
    if !is_dry {
        return store.discard(id).map(|id| id.to_string()).map_err(failed);
    }
    let id = store.find(id).map_err(failed)?;
    match store.get(id.as_str()) {
        Ok((_, set)) => Ok(format!("{id}: {}", contents(&set))),
        Err(_) => Ok(format!("{id}: damaged")),
    }
}

/// Deletes a file of changes. Returns its path. A dry run returns its contents, too.
fn discard_file(path: &Path, is_dry: bool) -> Result<String> {
    let saved = open_saved(path, &Bounds::default()).map_err(failed)?;
    if is_dry {
        return Ok(format!("{}: {}", text::path(path), contents(saved.set())));
    }
    saved.discard().map_err(failed)?;
    Ok(text::path(path))
}

/// Describes the contents of a change set.
fn contents(set: &ChangeSet) -> String {
    let StoredContents { changes, workspace } = StoredContents::of(set);
    let plural = if changes == 1 { "" } else { "s" };
    format!("{changes} file{plural} of {}", text::path(&workspace))
}

fn prune(args: &PruneChangesArgs) -> Result<u8> {
    if args.older_than.is_none() && args.max_size.is_none() {
        return Err(Error::invalid("changes", "there is nothing to prune by")
            .with_remedy("pass --older-than DURATION, --max-size SIZE, or both"));
    }
    let size = args.max_size.map_or(u64::MAX, ByteSize::as_bytes);
    let removed = review::store()?.prune(size, args.older_than.unwrap_or(Duration::MAX)).map_err(failed)?;
    report::remark(&format!("discarded {} of the kept changes", removed.len()), Tone::Good);
    Ok(0)
}

/// Returns the argument, or the identifier of the only kept changes of the current directory, which it prints.
fn selected(changes: Option<&str>) -> Result<String> {
    if let Some(changes) = changes {
        return Ok(changes.to_owned());
    }
    let here = std::env::current_dir().map_err(|error| {
        Error::invalid("changes", "cannot find the current directory")
            .with_source(error)
            .with_remedy("name an id of 'cofferdam changes ls'")
    })?;
    let is_here = |stored: &StoredSet| stored.contents.as_ref().is_some_and(|contents| contents.workspace == here);
    let stored: Vec<StoredSet> = review::store()?.list().map_err(failed)?.into_iter().filter(is_here).collect();
    let shown = text::path(&here);
    match &stored[..] {
        [only] => {
            let age = ago(only.time.elapsed().unwrap_or_default());
            report::remark(&format!("changes {} of {shown}, kept {age}", only.id), Tone::Good);
            Ok(only.id.to_string())
        }
        [] => {
            let message = format!("no changes of '{shown}' are kept");
            Err(Error::new(cofferdam::ErrorKind::NotFound, "changes", message)
                .with_remedy("go to the directory of the changes, or name an id of 'cofferdam changes ls'"))
        }
        [.., newest] => {
            stored.iter().for_each(|stored| report::remark(&row(stored), Tone::Good));
            let message = format!("{} change sets of '{shown}' are kept", stored.len());
            Err(Error::invalid("changes", message)
                .with_remedy(format!("name one of them; the newest is {}", newest.id)))
        }
    }
}

/// A change set with its directory.
struct Found {
    set: ChangeSet,
    /// The identifier in the store; `None` for a file.
    id: Option<Id>,
    directory: OwnedFd,
    path: PathBuf,
}

/// Finds a change set by its file, if the text is a path, or by its identifier.
fn find(changes: &str, to: Option<&Path>) -> Result<Found> {
    let (set, id) = match is_file(changes) {
        true => {
            let file = named::read(Path::new(changes)).map_err(|error| {
                Error::invalid("changes", format!("cannot open '{}'", text::path(Path::new(changes))))
                    .with_source(error)
            })?;
            (ChangeSet::read(file, &Bounds::default()).map_err(failed)?, None)
        }
        false => {
            let (id, set) = review::store()?.get(changes).map_err(failed)?;
            (set, Some(id))
        }
    };
    let path = to.map_or_else(|| set.header().workspace.clone(), Path::to_owned);
    Ok(Found { directory: review::open(&path)?, set, id, path })
}

/// Returns true if an argument is the path of a file, and not an identifier.
fn is_file(changes: &str) -> bool {
    // A guest may create a file with the beginning of an identifier as its name.
    let is_identifier = changes.bytes().all(|byte| byte.is_ascii_hexdigit());
    changes.contains(['/', '.']) || !is_identifier && Path::new(changes).is_file()
}

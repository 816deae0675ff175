//! The changes of a copy-on-write workspace at the end of a run: kept, shown, applied or saved.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use cofferdam::{Error, ErrorKind, Result, Sandbox, Spec, Workspace};
use cofferdam_changes::sandbox::{received, to_error};
use cofferdam_changes::{
    Applied, ApplyOptions, Bounds, ChangeSet, ChangesError, Color, Id, RenderOptions, Store, StoreLimits, apply,
    document, render, text,
};
use cofferdam_linux::named::Directory;
use serde_json::{Value, json};

use crate::args::ReviewArgs;
use crate::out_file::{Existing, OutFile};
use crate::report::{self, FAILED, Form};
use crate::state;
use crate::style::{Style, Tone};

/// The maximum number of conflicts and refusals that are printed.
const MAX_PRINTED: usize = 20;

/// The end of a run with a copy-on-write workspace.
#[derive(Debug)]
pub struct Reviewed {
    /// The exit status: that of the command, or of a change that could not be applied.
    pub status: u8,
    /// The changes in the JSON form.
    pub document: Value,
}

/// The review that a run asks for.
#[derive(Debug, Clone, Copy)]
pub struct Review<'a> {
    pub args: &'a ReviewArgs,
    pub form: Form,
    pub quiet: bool,
}

/// Checks the store of changes, if the sandboxes of a server have copy-on-write workspaces. Creates nothing.
#[cfg(feature = "mcp")]
pub fn check_server(spec: &Spec) -> Result<()> {
    match spec.workspace() {
        Workspace::CopyOnWrite { .. } => check_store(&store_directory()),
        _ => Ok(()),
    }
}

/// Keeps the changes of a sandbox that ends, and prints the commands that show and apply them. Does nothing without
/// changes, and without a copy-on-write workspace.
#[cfg(feature = "mcp")]
pub async fn keep(sandbox: &dyn Sandbox) -> Result<()> {
    if let Some(stored) = cofferdam_changes::sandbox::keep(sandbox, store_directory(), limits()).await? {
        remind(&stored.workspace, &stored.id, stored.files as u64);
    }
    Ok(())
}

/// Refuses options that need a copy-on-write workspace, and a store of changes that cannot be used. Creates nothing.
pub fn check(args: &ReviewArgs, spec: &Spec) -> Result<()> {
    if matches!(spec.workspace(), Workspace::CopyOnWrite { .. }) {
        return check_store(&store_directory());
    }
    let ReviewArgs { diff, apply, apply_if_ok, save_changes } = args;
    let options = [
        ("--diff", *diff),
        ("--apply", *apply),
        ("--apply-if-ok", *apply_if_ok),
        ("--save-changes", save_changes.is_some()),
    ];
    match options.into_iter().find(|(_, is_set)| *is_set) {
        Some((option, _)) => Err(Error::invalid("run", format!("{option} needs a copy-on-write workspace"))
            .with_remedy("name the directory with --workspace DIR")),
        None => Ok(()),
    }
}

/// Opens an existing store, or checks that it can be created.
fn check_store(path: &Path) -> Result<()> {
    if path.exists() {
        return store().map(drop);
    }
    let above = path.ancestors().find(|above| above.exists()).unwrap_or(path);
    rustix::fs::access(above, rustix::fs::Access::WRITE_OK).map_err(|error| {
        let message = format!("cannot keep changes in '{}': '{}' is not writable", text::path(path), text::path(above));
        Error::new(ErrorKind::Denied, "run", message)
            .with_source(std::io::Error::from(error))
            .with_remedy("set XDG_STATE_HOME to a directory of yours, or mount the workspace with :ro or :rw")
    })
}

/// Opens this user's store of changes.
pub fn store() -> Result<Store> {
    Store::open(&store_directory(), limits()).map_err(failed)
}

fn limits() -> StoreLimits {
    StoreLimits::default()
}

/// Returns the directory of this user's store of changes.
pub fn store_directory() -> PathBuf {
    state::directory("changes")
}

/// Converts an error of change sets.
pub fn failed(error: ChangesError) -> Error {
    to_error("changes", &error)
}

/// Keeps the changes of a sandbox, then shows, applies or saves them. Returns `None` without a copy-on-write workspace.
pub async fn review(sandbox: &dyn Sandbox, review: Review<'_>, status: u8) -> Result<Option<Reviewed>> {
    let Workspace::CopyOnWrite { path } = sandbox.spec().workspace() else { return Ok(None) };
    let changes = sandbox.changes().await?;
    if changes.skipped_count > 0 && !review.quiet {
        let count = changes.skipped_count;
        let plural = if count == 1 { "" } else { "s" };
        let skipped = changes.skipped.join("; ");
        report::remark(&format!("{count} changed file{plural} cannot be kept: {skipped}"), Tone::Warning);
    }
    let file = received(changes.layer).await?;
    let set = ChangeSet::read(file.try_clone().map_err(unread)?, &Bounds::default()).map_err(failed)?;
    if set.changes().is_empty() && set.cleared().is_empty() {
        let document = json!({"workspace": path, "changes": [], "skipped": changes.skipped});
        return Ok(Some(Reviewed { status, document }));
    }
    // Kept before anything else, so that nothing is lost if this process is killed. What was asked for is done even if
    // the store is full.
    let stored = store().and_then(|store| {
        let (id, ()) = store.keep(|out| copied(&file, out)).map_err(failed)?;
        Ok((store, id))
    });
    let captured = Captured { set: &set, file: &file, stored: Some(stored), path };
    captured.finish(review, status, &changes.skipped).map(Some)
}

/// Shows, applies or saves changes that a live sandbox of a server has, and keeps.
#[cfg(feature = "server")]
pub fn review_live(file: &File, skipped: &[String], review: Review<'_>) -> Result<Reviewed> {
    let set = ChangeSet::read(file.try_clone().map_err(unread)?, &Bounds::default()).map_err(failed)?;
    let path = &set.header().workspace;
    if set.changes().is_empty() && set.cleared().is_empty() {
        let document = json!({"workspace": path, "changes": [], "skipped": skipped});
        return Ok(Reviewed { status: 0, document });
    }
    Captured { set: &set, file, stored: None, path }.finish(review, 0, skipped)
}

fn unread(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "changes", "cannot read the changes of the workspace").with_source(error)
}

fn copied(mut file: &File, out: &mut dyn Write) -> Result<(), ChangesError> {
    let copied = file.seek(SeekFrom::Start(0)).and_then(|_| io::copy(&mut file, out));
    copied.map(drop).map_err(|source| ChangesError::Io { operation: "store", path: "the changes".to_owned(), source })
}

/// Changes that were captured.
struct Captured<'a> {
    set: &'a ChangeSet,
    /// The layer.
    file: &'a File,
    /// The store and the identifier in it, or the reason why they are not kept. `None` if the sandbox still has them.
    stored: Option<Result<(Store, Id)>>,
    /// The workspace.
    path: &'a Path,
}

impl Captured<'_> {
    fn finish(self, review: Review<'_>, status: u8, skipped: &[String]) -> Result<Reviewed> {
        let directory = open(self.path)?;
        let mut shown = json!(document(self.set, directory.as_fd()).map_err(failed)?);
        shown["skipped"] = json!(skipped);
        let (mut is_done, mut problems) = (false, Vec::new());
        let ReviewArgs { diff, apply, apply_if_ok, save_changes } = review.args;
        if *diff && review.form == Form::Text {
            problems.extend(self.print(directory.as_fd()).err());
        }
        if let Some(file) = save_changes {
            match self.save(file) {
                Ok(()) => is_done = true,
                Err(error) => problems.push(error),
            }
        }
        if *apply || *apply_if_ok && status == 0 {
            match apply_all(self.set, directory.as_fd()) {
                Ok(applied) => {
                    is_done = applied_whole(&applied);
                    shown["applied"] = applied_document(&applied);
                    if !review.quiet || !is_done {
                        print_applied(&applied, self.path);
                    }
                }
                Err(error) => problems.push(error),
            }
            if !is_done && problems.is_empty() && status == 0 {
                problems.push(Error::new(ErrorKind::Conflict, "apply", "not every change was applied"));
            }
        }
        match self.stored {
            None => {}
            Some(Ok((store, id))) if is_done => drop(store.discard(id.as_str()).map_err(failed)?),
            Some(Ok((_, id))) => {
                shown["id"] = json!(id.as_str());
                if !review.quiet {
                    remind(self.path, id.as_str(), shown["summary"]["files"].as_u64().unwrap_or(0));
                }
            }
            Some(Err(error)) if !is_done => return Err(error),
            Some(Err(_)) => {}
        }
        problems.iter().for_each(|problem| report::remark(&problem.to_string(), Tone::Bad));
        Ok(Reviewed { status: if problems.is_empty() { status } else { FAILED }, document: shown })
    }

    fn print(&self, directory: std::os::fd::BorrowedFd<'_>) -> Result<()> {
        let mut stdout = io::stdout().lock();
        let options = RenderOptions { color: color(), ..RenderOptions::default() };
        let printed = render(self.set, directory, &options, &mut stdout);
        let _ = stdout.flush();
        match printed {
            // The reader has seen enough.
            Err(ChangesError::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            printed => printed.map(drop).map_err(failed),
        }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let out = OutFile::begin(path, Existing::Keep)?;
        copied(self.file, &mut out.file()?).map_err(failed)?;
        out.finish()
    }
}

/// Prints how many files changed, and the commands that show and apply the changes.
pub fn remind(path: &Path, id: &str, files: u64) {
    let (path, plural) = (text::path(path), if files == 1 { "" } else { "s" });
    let line = format!(
        "{files} file{plural} of {path} changed in a copy: `cofferdam changes show {id}` shows and `cofferdam changes \
         apply {id}` applies it"
    );
    report::remark(&line, Tone::Good);
}

/// Opens the directory that a change set belongs to.
pub fn open(path: &Path) -> Result<OwnedFd> {
    Directory::open(path).map(OwnedFd::from).map_err(|error| {
        Error::new(ErrorKind::NotFound, "changes", format!("cannot open the directory '{}'", text::path(path)))
            .with_source(error)
    })
}

/// Returns the colours for standard output.
pub fn color() -> Color {
    if Style::stdout() == Style::Coloured { Color::Always } else { Color::Never }
}

fn apply_all(set: &ChangeSet, directory: std::os::fd::BorrowedFd<'_>) -> Result<Applied> {
    apply(set, directory, &ApplyOptions::default()).map_err(failed)
}

/// Returns true if every change was applied.
pub fn applied_whole(applied: &Applied) -> bool {
    applied.conflicts.is_empty() && applied.refused.is_empty() && applied.failed.is_none()
}

/// Returns the result of an application in the JSON form.
pub fn applied_document(applied: &Applied) -> Value {
    let Applied { applied, conflicts, refused, failed } = applied;
    json!({
        "applied": applied.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "conflicts": conflicts.iter().map(|conflict| json!({
            "path": conflict.path.to_string_lossy(), "reason": conflict.cause.to_string(),
            "kept_as": conflict.kept_as.as_ref().map(|path| path.to_string_lossy()),
        })).collect::<Vec<_>>(),
        "refused": refused.iter().map(|refused| json!({
            "path": refused.path.to_string_lossy(), "reason": refused.reason.to_string(),
        })).collect::<Vec<_>>(),
        "error": failed.as_ref().map(|(path, error)| json!({
            "path": path.to_string_lossy(), "reason": error.to_string(),
        })),
    })
}

/// Prints the result of an application on standard error.
pub fn print_applied(applied: &Applied, directory: &Path) {
    let count = applied.applied.len();
    let plural = if count == 1 { "" } else { "s" };
    report::remark(&format!("applied {count} change{plural} to {}", text::path(directory)), Tone::Good);
    print_not_applied(applied);
}

/// Prints what was not applied, on standard error.
pub fn print_not_applied(applied: &Applied) {
    for conflict in applied.conflicts.iter().take(MAX_PRINTED) {
        let kept_as =
            conflict.kept_as.as_ref().map(|kept_as| format!("; the guest's version is {}", text::path(kept_as)));
        let line =
            format!("conflict: {}: {}{}", text::path(&conflict.path), conflict.cause, kept_as.unwrap_or_default());
        report::remark(&line, Tone::Warning);
    }
    for refused in applied.refused.iter().take(MAX_PRINTED) {
        report::remark(&format!("not applied: {}: {}", text::path(&refused.path), refused.reason), Tone::Warning);
    }
    let hidden =
        (applied.conflicts.len().saturating_sub(MAX_PRINTED)) + applied.refused.len().saturating_sub(MAX_PRINTED);
    if hidden > 0 {
        report::remark(&format!("{hidden} more changes were not applied"), Tone::Warning);
    }
    if let Some((path, error)) = &applied.failed {
        report::remark(&format!("stopped at {}: {error}", text::path(path)), Tone::Bad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_checked_and_not_created() {
        let directory = tempfile::tempdir().unwrap();
        check_store(&directory.path().join("a/b")).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(check_store(Path::new("/proc/version/a")).is_err() || rustix::process::geteuid().is_root());
    }
}

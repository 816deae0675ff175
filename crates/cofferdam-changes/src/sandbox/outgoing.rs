//! Files of a sandbox that are copied to a directory of the host.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cofferdam_contract::{CopyOut, CopyPattern, CopyReport, Error, ErrorKind, Result};
use cofferdam_linux::named::Directory;
use tokio::io::AsyncWrite;

use super::{CopyEnd, blocking, to_error};
use crate::apply::{Applied, ApplyOptions, Existing, Workspace, apply};
use crate::bounds::Bounds;
use crate::error::ChangesError;
use crate::glob::Globs;
use crate::guarded;
use crate::header::Header;
use crate::layer::LayerWriter;
use crate::read::ChangeSet;
use crate::text;

const OPERATION: &str = "copy_out";

/// The result of a copy to the host.
#[derive(Debug)]
pub struct CopiedOut {
    /// The copy out of the sandbox.
    pub report: CopyReport,
    /// The files that were written on the host, and those that were not.
    pub applied: Applied,
}

/// Copies files of a sandbox to a directory of the host, and replaces existing ones. As [`copy_out_with`].
///
/// # Errors
/// - Those of [`copy_out_with`].
pub async fn copy_out(
    sandbox: &(impl CopyEnd + ?Sized),
    wanted: &CopyOut,
    destination: &Directory,
    on_bytes: &(dyn Fn(u64) + Send + Sync),
) -> Result<CopiedOut> {
    copy_out_with(sandbox, wanted, destination, Existing::Replace, on_bytes).await
}

/// Copies files of a sandbox to a directory of the host. Calls `on_bytes` with the size of what was received so far.
///
/// # Behavior
/// - Everything is received before the first file is written: a copy that is too large or malformed writes nothing.
/// - Files and symlinks of the host are replaced, each atomically, or are conflicts, as `existing` says. Directories stay, also their permissions.
/// - No path and no symlink leads out of the directory. Files that programs of the host execute or obey without being
///   asked are refused, unless a pattern without wildcards names them.
///
/// # Errors
/// - Those of [`CopyEnd::deliver`], and of files without a name in the directory for temporary files.
pub async fn copy_out_with(
    sandbox: &(impl CopyEnd + ?Sized),
    wanted: &CopyOut,
    destination: &Directory,
    existing: Existing,
    on_bytes: &(dyn Fn(u64) + Send + Sync),
) -> Result<CopiedOut> {
    let shown = destination.path().to_owned();
    let directory = destination.as_fd().try_clone_to_owned().map_err(unwritable)?;
    let header = Header::of(&shown, directory.as_fd(), 0).map_err(|error| to_error(OPERATION, &error))?;
    let file = blocking(OPERATION, move || {
        let file = tempfile::tempfile().map_err(unwritable)?;
        let begun = LayerWriter::new(file, &header).and_then(LayerWriter::into_inner);
        begun.map_err(|error| to_error(OPERATION, &error))
    })
    .await?;
    let mut out = Counting { file: tokio::fs::File::from_std(file), written: 0, on_bytes };
    let report = sandbox.deliver(wanted, &mut out).await?;
    let file = out.file.into_std().await;
    let allow = named(wanted);
    let bounds = Bounds {
        max_entries: usize::try_from(wanted.max_entries).unwrap_or(usize::MAX),
        max_bytes: wanted.max_bytes.as_bytes(),
    };
    let write = move || {
        let set = received(file, &bounds)?;
        let options = ApplyOptions { allow, workspace: Workspace::Any, existing, ..ApplyOptions::default() };
        apply(&set, directory.as_fd(), &options)
    };
    let applied = blocking(OPERATION, move || write().map_err(|error| to_error(OPERATION, &error))).await?;
    Ok(CopiedOut { report, applied })
}

/// Returns the guarded files that the caller named. Naming a directory allows none of the files in it.
fn named(wanted: &CopyOut) -> Globs {
    let literal = wanted.patterns.iter().filter(|pattern| !pattern.is_wild()).map(CopyPattern::as_str);
    Globs::exact(literal.map(Path::new).filter(|path| guarded::is_guarded(path)))
}

/// Reads what a sandbox sent as a change set, which may only add files.
fn received(mut file: File, bounds: &Bounds) -> std::result::Result<ChangeSet, ChangesError> {
    let rewound = file.seek(SeekFrom::Start(0));
    rewound.map_err(|source| ChangesError::Io { operation: "read", path: "the copy".to_owned(), source })?;
    let set = ChangeSet::read(file, bounds)?;
    let other = set.changes().iter().find(|change| change.node.is_none() || change.base.is_some());
    let other = other.map(|change| change.path.as_path()).or_else(|| set.cleared().first().map(AsRef::as_ref));
    match other {
        None => Ok(set),
        Some(path) => {
            Err(ChangesError::Malformed { entry: text::path(path), reason: "a copy only adds files".to_owned() })
        }
    }
}

fn unwritable(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, OPERATION, "cannot store the copy").with_source(error)
}

/// A file that counts what is written to it.
struct Counting<'a> {
    file: tokio::fs::File,
    written: u64,
    on_bytes: &'a (dyn Fn(u64) + Send + Sync),
}

impl AsyncWrite for Counting<'_> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.file).poll_write(context, bytes))?;
        self.written += count as u64;
        (self.on_bytes)(self.written);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_shutdown(context)
    }
}

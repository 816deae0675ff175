//! Files of the workspace: a script in the VM resolves paths and replaces files, and E2B's API carries the contents.
//!
//! E2B's own file operations follow every link and open fifos. The script refuses both, but a program in the VM can swap
//! a link between the script and the transfer. It then reaches another file of its own VM, never one of the host.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{COPIED_MODE, DirEntry, Error, ErrorKind, FileReader, NewEntry, Result, SandboxPath};
use reqwest::Response;
use tokio::io::AsyncReadExt;
use tokio_util::io::StreamReader;

use crate::client::{ROOT, USER};
use crate::core::{Core, random};
use crate::guest::{FILE, MAX_FIELDS, entries, refusal, script};
use crate::upload::Upload;

/// The most bytes of a list of a directory.
const MAX_LIST: usize = 64 << 20;
/// The most bytes of a path, and of the reason of a refusal.
const MAX_PATH: usize = 16 << 10;
/// The bits that let a user write.
const WRITING: u32 = 0o222;
const DEFAULT_MODE: u32 = 0o644;

/// Returns the user of the file API. Programs cannot write to a read-only workspace.
fn user(core: &Core) -> &'static str {
    if core.read_only { ROOT } else { USER }
}

/// Runs an operation of the script, and returns its output.
async fn run(
    core: &Core,
    operation: &'static str,
    path: &SandboxPath,
    arguments: &[&str],
    max: usize,
) -> Result<Vec<u8>> {
    let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
    let output = core.run(operation, user(core), script(FILE, arguments, true), max).await?;
    match output.code {
        0 => Ok(output.stdout),
        code => Err(refusal(code, &String::from_utf8_lossy(&output.stdout), operation, &path.to_string())),
    }
}

/// Runs an operation that prints a path.
async fn resolved(core: &Core, operation: &'static str, path: &SandboxPath, how: &str) -> Result<String> {
    let real = run(core, operation, path, &[how, &path.inside()], MAX_PATH).await?;
    String::from_utf8(real).map_err(|_| {
        Error::new(ErrorKind::Conflict, operation, "the path leads to a name that is not UTF-8")
            .with_context("path", path.to_string())
    })
}

/// Opens a file from an offset. An offset beyond the end gives no bytes.
pub(crate) async fn read(core: &Core, path: &SandboxPath, offset: u64) -> Result<FileReader> {
    let real = resolved(core, "read_file", path, "read").await?;
    let agent = core.open("read_file")?;
    match agent.download(&real, user(core), offset).await {
        Ok(response) => {
            // An agent that ignores the range sends the whole file.
            let ignored = offset > 0 && response.status() != hyper::StatusCode::PARTIAL_CONTENT;
            let mut reader: FileReader = Box::new(StreamReader::new(Box::pin(chunks(response))));
            if ignored {
                let skipped = tokio::io::copy(&mut (&mut reader).take(offset), &mut tokio::io::sink()).await;
                skipped.map_err(|error| {
                    Error::new(ErrorKind::Io, "read_file", "cannot read the file").with_source(error)
                })?;
            }
            Ok(reader)
        }
        Err(crate::error::Failure::Refused(refusal)) if refusal.status == 416 => Ok(Box::new(tokio::io::empty())),
        Err(failure) => Err(core.failed("read_file", failure).with_context("path", path.to_string())),
    }
}

fn chunks(response: Response) -> impl futures_core::Stream<Item = io::Result<Bytes>> + Send {
    futures_util::stream::try_unfold(response, |mut response| async move {
        let chunk = response.chunk().await.map_err(|error| io::Error::other(error.without_url()))?;
        Ok(chunk.map(|chunk| (chunk, response)))
    })
}

/// Creates or replaces a file, at once. Links inside the workspace are followed.
pub(crate) async fn write(core: &Arc<Core>, path: &SandboxPath, contents: FileReader) -> Result<u64> {
    let real = resolved(core, "write_file", path, "write").await?;
    replace(core, ("write_file", path), &real, contents, (DEFAULT_MODE, None)).await
}

/// Creates a file, directory or symlink, and follows no link.
pub(crate) async fn put(core: &Arc<Core>, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
    let inside = path.inside();
    if path.is_workspace() {
        return match entry {
            NewEntry::Directory { .. } => Ok(0),
            _ => Err(Error::new(ErrorKind::Conflict, "put", "the workspace is a directory")),
        };
    }
    match entry {
        NewEntry::File { mode, modified, contents } => {
            let real = resolved(core, "put", path, "parents").await?;
            replace(core, ("put", path), &real, contents, (mode & COPIED_MODE, Some(modified))).await
        }
        NewEntry::Directory { mode } => {
            let mode = if core.read_only { mode & !WRITING } else { mode };
            let mode = format!("{:o}", mode & COPIED_MODE);
            run(core, "put", path, &["directory", &inside, &mode], MAX_PATH).await.map(|_| 0)
        }
        NewEntry::Symlink { target } => {
            let refused = |message: &str| Err(Error::invalid("put", message).with_context("path", path.to_string()));
            if target.contains('\0') || target.is_empty() {
                return refused("the target of a symlink must not be empty or contain NUL bytes");
            }
            run(core, "put", path, &["link", &inside, &target, &temporary(&inside)], MAX_PATH).await.map(|_| 0)
        }
    }
}

/// Returns a new name beside a path.
fn temporary(path: &str) -> String {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    format!("{directory}/.cofferdam-{}", random())
}

/// Uploads a file beside its place, and moves it there when it is complete.
async fn replace(
    core: &Arc<Core>,
    (operation, path): (&'static str, &SandboxPath),
    real: &str,
    contents: FileReader,
    (mode, modified): (u32, Option<i64>),
) -> Result<u64> {
    let temporary = temporary(real);
    let mut unfinished = Unfinished(Some((Arc::clone(core), temporary.clone())));
    let replaced = upload_and_move(core, (operation, path), (&temporary, real), contents, (mode, modified)).await;
    unfinished.0 = None;
    if replaced.is_err() {
        discard(core, temporary).await;
    }
    replaced
}

async fn upload_and_move(
    core: &Core,
    (operation, path): (&'static str, &SandboxPath),
    (temporary, real): (&str, &str),
    contents: FileReader,
    (mode, modified): (u32, Option<i64>),
) -> Result<u64> {
    let agent = core.open(operation)?;
    let upload = Upload::new(contents);
    let progress = upload.progress();
    let sent = agent.upload(temporary, user(core), upload).await;
    if let Some(error) = progress.take_failure() {
        return Err(Error::new(ErrorKind::Io, operation, "cannot read the contents").with_source(error));
    }
    sent.map_err(|failure| core.failed(operation, failure).with_context("path", path.to_string()))?;
    let mode = if core.read_only { mode & !WRITING } else { mode };
    let (mode, time) = (format!("{mode:o}"), modified.map(|time| time.to_string()).unwrap_or_default());
    run(core, operation, path, &["commit", temporary, real, &mode, &time], MAX_PATH).await?;
    Ok(progress.bytes())
}

/// An upload whose file is removed if the caller gives it up.
struct Unfinished(Option<(Arc<Core>, String)>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let (Some((core, path)), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { discard(&core, path).await });
        }
    }
}

/// Removes the file of an upload that failed. If that fails as well, the file remains under its odd name.
async fn discard(core: &Core, path: String) {
    let process = script(FILE, vec!["discard".to_owned(), path], true);
    let _ = core.run("discard", user(core), process, MAX_PATH).await;
}

/// Lists a directory.
pub(crate) async fn list(core: &Core, path: &SandboxPath) -> Result<Vec<DirEntry>> {
    let output = run(core, "list_dir", path, &["list", &path.inside(), &MAX_FIELDS.to_string()], MAX_LIST).await?;
    entries(&output)
}

/// Renames a file, a link or a directory.
pub(crate) async fn rename(core: &Core, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
    if from.is_workspace() || to.is_workspace() {
        return Err(Error::invalid("rename", "the workspace itself cannot be renamed or replaced"));
    }
    if to.as_str().strip_prefix(from.as_str()).is_some_and(|rest| rest.starts_with('/')) {
        core.open("rename")?;
        return Err(Error::invalid("rename", "a directory cannot be moved into itself"));
    }
    run(core, "rename", from, &["rename", &from.inside(), &to.inside()], MAX_PATH).await.map(drop)
}

/// Removes a file, a link or a directory with its contents.
pub(crate) async fn remove(core: &Core, path: &SandboxPath) -> Result<()> {
    if path.is_workspace() {
        return Err(Error::invalid("remove", "the workspace cannot be removed"));
    }
    run(core, "remove", path, &["remove", &path.inside()], MAX_PATH).await.map(drop)
}

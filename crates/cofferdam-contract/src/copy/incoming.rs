//! Copies into a workspace.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, Take};

use super::{CopyReport, CopySkipped};
use crate::archive::{TarEntry, TarKind, TarReader};
use crate::{COPIED_MODE, FileReader, NewEntry, Result, Sandbox, SandboxPath};

const OPERATION: &str = "copy_in";
/// The permissions that a directory has at least until its contents are complete.
const OPEN_DIRECTORY: u32 = 0o700;
const SET_ID: u32 = 0o6000;

/// Puts the entries of an archive into a workspace.
pub(crate) async fn copy_in<S: Sandbox + ?Sized>(
    sandbox: &S,
    destination: &SandboxPath,
    tar: FileReader,
) -> Result<CopyReport> {
    let mut archive = TarReader::new(Shared(Arc::new(Mutex::new(tar))), OPERATION);
    let mut report = CopyReport::default();
    let mut closed = Vec::new();
    while let Some(entry) = archive.next().await? {
        let size = if let TarKind::File(size) = entry.kind { size } else { 0 };
        let path = match sandbox_path(destination, &entry) {
            Ok(path) => path,
            Err(reason) => {
                report.skip(&String::from_utf8_lossy(&entry.path), reason);
                archive.skip(size).await?;
                continue;
            }
        };
        if entry.mode & SET_ID != 0 && !matches!(entry.kind, TarKind::Symlink(_)) {
            report.skip(path.as_str(), CopySkipped::SetId);
        }
        let mode = entry.mode & COPIED_MODE;
        let new = match entry.kind {
            TarKind::File(size) => {
                let contents = Box::new(Contents(archive.input().clone().take(size)));
                NewEntry::File { mode, modified: entry.modified, contents }
            }
            TarKind::Directory if path.is_workspace() => continue,
            TarKind::Directory => {
                if mode & OPEN_DIRECTORY != OPEN_DIRECTORY {
                    closed.push((path.clone(), mode));
                }
                NewEntry::Directory { mode: mode | OPEN_DIRECTORY }
            }
            TarKind::Symlink(target) => match String::from_utf8(target) {
                Ok(target) => NewEntry::Symlink { target },
                Err(_) => {
                    report.skip(path.as_str(), CopySkipped::NotText);
                    continue;
                }
            },
            TarKind::Link(_) | TarKind::Other => continue,
        };
        sandbox.put(&path, new).await?;
        archive.skip_padding(size).await?;
        report.entries += 1;
        report.bytes += size;
    }
    // Contents come after their directory, so that one without rights gets its permissions at the end.
    for (path, mode) in closed.into_iter().rev() {
        sandbox.put(&path, NewEntry::Directory { mode }).await?;
    }
    Ok(report)
}

/// Returns the path of an entry in the workspace.
fn sandbox_path(destination: &SandboxPath, entry: &TarEntry) -> Result<SandboxPath, CopySkipped> {
    match entry.kind {
        TarKind::Link(_) => return Err(CopySkipped::HardLink),
        TarKind::Other => return Err(CopySkipped::NotAFile),
        _ => {}
    }
    let name = std::str::from_utf8(&entry.path).map_err(|_| CopySkipped::NotText)?;
    destination.join(name).map_err(|_| CopySkipped::TooDeep)
}

/// The archive, shared with the reader of one file's contents.
#[derive(Clone)]
struct Shared(Arc<Mutex<FileReader>>);

impl AsyncRead for Shared {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(context, into)
    }
}

/// The contents of one file of the archive. An archive that ends before is an error.
struct Contents(Take<Shared>);

impl AsyncRead for Contents {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.remaining();
        ready!(Pin::new(&mut self.0).poll_read(context, into))?;
        if before > 0 && into.remaining() == before && self.0.limit() > 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(()))
    }
}

//! Export of a workspace to an archive: sorted, without owners, reproducible to the byte.

use std::collections::HashMap;

use cofferdam_contract::archive::{MAX_TAR_PATH, TarEntry, TarKind, TarWriter};
use cofferdam_contract::{COPIED_MODE, Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::{ArchiveSummary, Hashing, TOP, too_large};
use crate::files::{self, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::inner::Inner;
use crate::slots::Listed;

const EXPORT: &str = "snapshot";
/// The highest number of buffered entries of nested directories.
const MAX_BUFFERED: usize = 1_000_000;
const COPY: usize = 256 * 1024;

/// A directory being exported: its path below the workspace, and its remaining entries in reverse order.
struct Level {
    path: Vec<u8>,
    left: Vec<Listed>,
}

/// Writes the workspace as an archive.
pub async fn export(inner: &Inner, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<ArchiveSummary> {
    let mut out = Export { out: TarWriter::new(Hashing::new(into), EXPORT), links: HashMap::new() };
    out.entry(TarKind::Directory, b"", 0o755, 0).await?;
    let mut levels = vec![open(inner, Vec::new()).await?];
    let mut buffered = levels[0].left.len();
    while let Some(level) = levels.last_mut() {
        let Some(listed) = level.left.pop() else {
            levels.pop();
            continue;
        };
        buffered -= 1;
        let path = joined(&level.path, &listed.name);
        if path.len() > MAX_TAR_PATH - TOP.len() - 1 {
            return Err(too_deep());
        }
        let (mode, modified) = (listed.mode & COPIED_MODE, listed.modified.0);
        match listed.mode & S_IFMT {
            S_IFREG => out.file(inner, &path, &listed).await?,
            S_IFLNK => out.entry(TarKind::Symlink(listed.target), &path, 0o777, modified).await?,
            S_IFDIR => {
                out.entry(TarKind::Directory, &path, mode, modified).await?;
                let next = open(inner, path).await?;
                buffered += next.left.len();
                if buffered > MAX_BUFFERED {
                    return Err(too_large(EXPORT));
                }
                levels.push(next);
            }
            _ => {}
        }
    }
    let entries = out.out.entries();
    Ok(out.out.finish().await?.finish(entries))
}

fn too_deep() -> Error {
    Error::new(
        ErrorKind::ResourceExhausted,
        EXPORT,
        format!("a path in the workspace has more than {MAX_TAR_PATH} bytes"),
    )
    .with_remedy("remove the deepest directories")
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

async fn open(inner: &Inner, path: Vec<u8>) -> Result<Level> {
    let mut left = files::entries(inner, EXPORT, &path).await?;
    left.sort_by(|a, b| b.name.cmp(&a.name));
    Ok(Level { path, left })
}

struct Export<'a> {
    out: TarWriter<Hashing<&'a mut (dyn AsyncWrite + Send + Unpin)>>,
    /// Files with several names: their inode numbers and the first name of each.
    links: HashMap<u64, Vec<u8>>,
}

impl Export<'_> {
    async fn file(&mut self, inner: &Inner, path: &[u8], listed: &Listed) -> Result<()> {
        let (mode, modified) = (listed.mode & COPIED_MODE, listed.modified.0);
        if let Some(first) = self.links.get(&listed.inode).filter(|_| listed.links > 1) {
            let first = below(first);
            return self.entry(TarKind::Link(first), path, mode, modified).await;
        }
        if listed.links > 1 {
            self.links.insert(listed.inode, path.to_vec());
        }
        let (mut reader, size) = files::read(inner, EXPORT, path).await?;
        self.entry(TarKind::File(size), path, mode, modified).await?;
        let mut buffer = vec![0; COPY.min(usize::try_from(size).unwrap_or(COPY)).max(1)];
        let mut left = size;
        loop {
            let count = read(&mut reader, &mut buffer, path).await?;
            if count as u64 > left || (count == 0 && left > 0) {
                return Err(Error::new(ErrorKind::Conflict, EXPORT, "a file changed while it was read")
                    .with_remedy("pause the sandbox first")
                    .with_context("path", String::from_utf8_lossy(path).escape_debug().to_string()));
            }
            if count == 0 {
                return self.out.pad(size).await;
            }
            left -= count as u64;
            self.out.contents(&buffer[..count]).await?;
        }
    }

    async fn entry(&mut self, kind: TarKind, path: &[u8], mode: u32, modified: i64) -> Result<()> {
        self.out.entry(&TarEntry { kind, path: below(path), mode, modified }).await
    }
}

fn below(path: &[u8]) -> Vec<u8> {
    if path.is_empty() { TOP.as_bytes().to_vec() } else { [TOP.as_bytes(), b"/", path].concat() }
}

async fn read(reader: &mut (impl AsyncRead + Unpin), buffer: &mut [u8], path: &[u8]) -> Result<usize> {
    reader.read(buffer).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).cloned();
        inner.unwrap_or_else(|| {
            Error::new(ErrorKind::Io, EXPORT, "cannot read a file")
                .with_context("path", String::from_utf8_lossy(path).escape_debug().to_string())
                .with_source(error)
        })
    })
}

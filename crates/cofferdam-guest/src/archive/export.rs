//! Export of a workspace to an archive: sorted, without owners, reproducible to the byte.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind, Result};
use tar::{EntryType, Header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Archive, BLOCK, Hashing, MAX_ENTRIES, MAX_PATH, PERMISSIONS, TOP, pax, too_large};
use crate::files;
use crate::inner::Inner;
use crate::slots::Listed;

const EXPORT: &str = "snapshot";
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;
/// The highest number of buffered entries of nested directories.
const MAX_BUFFERED: usize = 1_000_000;
const COPY: usize = 256 * 1024;

/// A directory being exported: its path below the workspace, and its remaining entries in reverse order.
struct Level {
    path: Vec<u8>,
    left: Vec<Listed>,
}

/// Writes the workspace as an archive.
pub async fn export(inner: &Inner, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<Archive> {
    let mut out = Export { out: Hashing::new(into), entries: 0, links: HashMap::new() };
    out.entry(EntryType::Directory, b"", 0o755, 0, 0, b"").await?;
    let mut levels = vec![open(inner, Vec::new()).await?];
    let mut buffered = levels[0].left.len();
    while let Some(level) = levels.last_mut() {
        let Some(listed) = level.left.pop() else {
            levels.pop();
            continue;
        };
        buffered -= 1;
        let path = joined(&level.path, &listed.name);
        if path.len() > MAX_PATH {
            return Err(too_deep());
        }
        let (mode, modified) = (listed.mode & PERMISSIONS, listed.modified.0);
        match listed.mode & S_IFMT {
            S_IFREG => out.file(inner, &path, &listed).await?,
            S_IFLNK => out.entry(EntryType::Symlink, &path, 0o777, modified, 0, &listed.target).await?,
            S_IFDIR => {
                out.entry(EntryType::Directory, &path, mode, modified, 0, b"").await?;
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
    out.write(&[0; 2 * BLOCK]).await?;
    out.out.flush().await.map_err(broken)?;
    Ok(out.out.finish(out.entries))
}

fn too_deep() -> Error {
    Error::new(ErrorKind::ResourceExhausted, EXPORT, format!("a path in the workspace has more than {MAX_PATH} bytes"))
        .with_remedy("remove the deepest directories")
}

fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, EXPORT, "cannot write the archive").with_source(error)
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
    out: Hashing<&'a mut (dyn AsyncWrite + Send + Unpin)>,
    entries: u64,
    /// Files with several names: their inode numbers and the first name of each.
    links: HashMap<u64, Vec<u8>>,
}

impl Export<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).await.map_err(broken)
    }

    /// Fills the last block with zeros.
    async fn pad(&mut self, length: u64) -> Result<()> {
        let over = (length % BLOCK as u64) as usize;
        if over == 0 { Ok(()) } else { self.write(&[0; BLOCK][over..]).await }
    }

    async fn file(&mut self, inner: &Inner, path: &[u8], listed: &Listed) -> Result<()> {
        let (mode, modified) = (listed.mode & PERMISSIONS, listed.modified.0);
        if let Some(first) = self.links.get(&listed.inode).filter(|_| listed.links > 1) {
            let first = below(first);
            return self.entry(EntryType::Link, path, mode, modified, 0, &first).await;
        }
        if listed.links > 1 {
            self.links.insert(listed.inode, path.to_vec());
        }
        let (mut reader, size) = files::read(inner, EXPORT, path).await?;
        self.entry(EntryType::Regular, path, mode, modified, size, b"").await?;
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
                return self.pad(size).await;
            }
            left -= count as u64;
            self.write(&buffer[..count]).await?;
        }
    }

    async fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        mode: u32,
        modified: i64,
        size: u64,
        target: &[u8],
    ) -> Result<()> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(too_large(EXPORT));
        }
        let mut path = below(path);
        if kind == EntryType::Directory {
            path.push(b'/');
        }
        let mut header = header(kind, mode, size);
        let mut records = Vec::new();
        if header.set_path(Path::new(OsStr::from_bytes(&path))).is_err() {
            records.extend(pax::record("path", &path));
            header.set_path(format!("{TOP}/@long")).map_err(broken)?;
        }
        if !target.is_empty() && header.set_link_name_literal(target).is_err() {
            records.extend(pax::record("linkpath", target));
            header.set_link_name_literal("@long").map_err(broken)?;
        }
        match u64::try_from(modified) {
            Ok(seconds) => header.set_mtime(seconds),
            Err(_) => records.extend(pax::record("mtime", modified.to_string().as_bytes())),
        }
        header.set_cksum();
        if !records.is_empty() {
            let mut more = self::header(EntryType::XHeader, 0o644, records.len() as u64);
            more.set_path(format!("{TOP}/@more")).map_err(broken)?;
            more.set_cksum();
            self.write(more.as_bytes()).await?;
            self.write(&records).await?;
            self.pad(records.len() as u64).await?;
        }
        self.write(header.as_bytes()).await
    }
}

/// Creates a header without owner and with a zero time.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
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

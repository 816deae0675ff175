//! Import of an archive into a workspace. The archive is untrusted: each entry is verified before it is written, and
//! none is written through a link.

use cofferdam_contract::archive::{TarEntry, TarKind, TarReader};
use cofferdam_contract::{COPIED_MODE, Error, Result};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{ArchiveSummary, Hashing, TOP, too_large};
use crate::files::{self, Target, Writing};
use crate::inner::Inner;
use crate::wire::{MAX_DATA, Make, Request, Root};

const IMPORT: &str = "restore";
/// The highest number of directories. Their times are set at the end, since writing their contents changes these.
const MAX_DIRECTORIES: usize = 1_000_000;

type Input<'a> = TarReader<Hashing<&'a mut (dyn AsyncRead + Send + Unpin)>>;

fn bad(what: impl Into<String>) -> Error {
    Error::invalid(IMPORT, format!("the archive is invalid: {}", what.into()))
}

/// Extracts an archive into the workspace.
pub async fn import(inner: &Inner, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<ArchiveSummary> {
    let mut input = TarReader::new(Hashing::new(from), IMPORT);
    let mut directories = Vec::new();
    while let Some(entry) = input.next().await? {
        if directories.len() > MAX_DIRECTORIES {
            return Err(too_large(IMPORT));
        }
        let entry = verify(entry)?;
        put(inner, &entry, &mut input).await?;
        if entry.kind == TarKind::Directory && !entry.path.is_empty() {
            directories.push(entry);
        }
    }
    // In reverse order: contents come after their directory, so that a read-only directory becomes read-only last.
    for TarEntry { path, mode, modified, .. } in directories.iter().rev() {
        adjust(inner, path, Some(*mode), *modified).await?;
    }
    input.expect_end().await?;
    let entries = input.entries();
    Ok(input.into_inner().finish(entries))
}

/// Returns an entry with its path below the workspace.
fn verify(entry: TarEntry) -> Result<TarEntry> {
    let TarEntry { kind, path, mode, modified } = entry;
    let shown = String::from_utf8_lossy(&path).escape_debug().to_string();
    let path = below(&path).ok_or_else(|| bad(format!("'{shown}' is not a path below {TOP}/")))?;
    let kind = match kind {
        TarKind::Link(target) => {
            let target = below(&target).filter(|target| !target.is_empty());
            TarKind::Link(target.ok_or_else(|| bad(format!("'{shown}' is a hard link to a path outside {TOP}/")))?)
        }
        TarKind::Other => return Err(bad(format!("'{shown}' is not a file, directory or link"))),
        kind => kind,
    };
    if path.is_empty() && kind != TarKind::Directory {
        return Err(bad(format!("{TOP} itself is not a directory")));
    }
    Ok(TarEntry { kind, path, mode: mode & COPIED_MODE, modified })
}

/// Returns a path of an archive relative to the workspace, or `None` if it lies outside.
fn below(path: &[u8]) -> Option<Vec<u8>> {
    match path.strip_prefix(TOP.as_bytes())? {
        b"" => Some(Vec::new()),
        rest => rest.strip_prefix(b"/").map(<[u8]>::to_vec),
    }
}

/// Writes an entry to the workspace.
async fn put(inner: &Inner, entry: &TarEntry, input: &mut Input<'_>) -> Result<()> {
    let TarEntry { kind, path, mode, modified } = entry;
    let make = match kind {
        TarKind::File(size) => return put_file(inner, entry, *size, input).await,
        TarKind::Directory if path.is_empty() => return Ok(()),
        // Writable for its owner until its contents are complete.
        TarKind::Directory => Make::Directory { mode: *mode | 0o700 },
        TarKind::Symlink(target) => Make::Symlink { target },
        TarKind::Link(target) => Make::Link { target },
        TarKind::Other => return Ok(()),
    };
    send(inner, path, &Request::Make { root: Root::Workspace, path, make }).await?;
    if matches!(kind, TarKind::Symlink(_)) { adjust(inner, path, None, *modified).await } else { Ok(()) }
}

async fn put_file(inner: &Inner, entry: &TarEntry, size: u64, input: &mut Input<'_>) -> Result<()> {
    let TarEntry { path, mode, modified, .. } = entry;
    let target = Target { root: Root::Workspace, path, strict: true, mode: *mode, modified: Some((*modified, 0)) };
    let writing = Writing::begin(inner, IMPORT, &target).await?;
    let mut buffer = vec![0; MAX_DATA.min(usize::try_from(size).unwrap_or(MAX_DATA))];
    let mut left = size;
    while left > 0 {
        let max = usize::try_from(left).unwrap_or(MAX_DATA);
        let Some(room) = writing.room(max.min(MAX_DATA)).await? else { break };
        let count = room.bytes();
        let read = input.input().read_exact(&mut buffer[..count]).await;
        read.map_err(|error| input.unreadable(error))?;
        writing.data(&buffer[..count], room).await?;
        left -= count as u64;
    }
    if left == 0 {
        input.skip_padding(size).await?;
    }
    writing.finish().await
}

async fn send(inner: &Inner, path: &[u8], request: &Request<'_>) -> Result<()> {
    files::simple(inner, IMPORT, &String::from_utf8_lossy(path), request).await
}

async fn adjust(inner: &Inner, path: &[u8], mode: Option<u32>, modified: i64) -> Result<()> {
    send(inner, path, &Request::Adjust { root: Root::Workspace, path, mode, modified: Some((modified, 0)) }).await
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::ErrorKind;

    use super::*;

    fn verified(kind: TarKind, path: &str) -> Result<TarEntry> {
        verify(TarEntry { kind, path: path.as_bytes().to_vec(), mode: 0o6755, modified: 7 })
    }

    #[test]
    fn entries_below_the_top_are_accepted() {
        let entry = verified(TarKind::File(9), "workspace/a/b").unwrap();
        assert_eq!(entry, TarEntry { kind: TarKind::File(9), path: b"a/b".to_vec(), mode: 0o755, modified: 7 });
        assert!(verified(TarKind::Directory, "workspace").is_ok());
        assert!(verified(TarKind::Symlink(b"/etc/passwd".to_vec()), "workspace/l").is_ok(), "a link is only text");
        assert!(verified(TarKind::Link(b"workspace/a".to_vec()), "workspace/l").is_ok());
    }

    #[test]
    fn entries_elsewhere_are_refused() {
        for (kind, path) in [
            (TarKind::File(0), "etc/passwd"),
            (TarKind::File(0), "workspaces/a"),
            (TarKind::File(0), "workspace"),
            (TarKind::Symlink(b"/etc".to_vec()), "workspace"),
            (TarKind::Link(b"etc/passwd".to_vec()), "workspace/l"),
            (TarKind::Link(b"workspace".to_vec()), "workspace/l"),
            (TarKind::Other, "workspace/c"),
        ] {
            assert_eq!(verified(kind.clone(), path).unwrap_err().kind(), ErrorKind::InvalidInput, "{kind:?} {path}");
        }
    }
}

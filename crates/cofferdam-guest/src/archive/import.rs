//! Import of an archive into a workspace. The archive is untrusted: each entry is verified before it is written, and
//! none is written through a link.

use std::io;

use cofferdam_contract::{Error, ErrorKind, Result};
use tar::{EntryType, Header};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Archive, BLOCK, Hashing, MAX_ENTRIES, MAX_PATH, PERMISSIONS, TOP, pax, too_large};
use crate::files::{self, Target, Writing};
use crate::inner::Inner;
use crate::wire::{MAX_DATA, Make, Request, Root};

const IMPORT: &str = "restore";
/// The maximum length of an extended header.
const MAX_RECORDS: u64 = 256 * 1024;
/// The highest number of directories. Their times are set at the end, since writing their contents changes these.
const MAX_DIRECTORIES: usize = 1_000_000;

fn bad(what: impl Into<String>) -> Error {
    Error::invalid(IMPORT, format!("the archive is invalid: {}", what.into()))
}

fn unreadable(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return bad("it is truncated");
    }
    Error::new(ErrorKind::Io, IMPORT, "cannot read the archive").with_source(error)
}

/// One verified entry.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    kind: Kind,
    /// The path below the workspace.
    path: Vec<u8>,
    mode: u32,
    modified: i64,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    File(u64),
    Directory,
    Symlink(Vec<u8>),
    /// The path below the workspace.
    Link(Vec<u8>),
}

/// The meaning of a header.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The length of an extended header for the next entry.
    Records(u64),
    /// The length of an extended header for all entries, which is ignored.
    Ignored(u64),
    /// The length of a path, or of a link's target, for the next entry.
    Long(u64, Long),
    Entry(Entry),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Long {
    Path,
    Target,
}

/// Extracts an archive into the workspace.
pub async fn import(inner: &Inner, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<Archive> {
    let mut input = Hashing::new(from);
    let mut records = pax::Records::default();
    let mut directories = Vec::new();
    let mut entries = 0;
    while let Some(header) = next_header(&mut input).await? {
        match verify(&header, &records)? {
            Step::Records(length) => {
                let found = small(&mut input, length).await?;
                records = pax::read(&found).ok_or_else(|| bad("an extended header is malformed"))?;
            }
            Step::Ignored(length) => drop(small(&mut input, length).await?),
            Step::Long(length, what) => {
                let mut text = small(&mut input, length).await?;
                text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
                match what {
                    Long::Path => records.path = Some(text),
                    Long::Target => records.target = Some(text),
                }
            }
            Step::Entry(entry) => {
                records = pax::Records::default();
                entries += 1;
                if entries > MAX_ENTRIES || directories.len() > MAX_DIRECTORIES {
                    return Err(too_large(IMPORT));
                }
                put(inner, &entry, &mut input).await?;
                if entry.kind == Kind::Directory && !entry.path.is_empty() {
                    directories.push(entry);
                }
            }
        }
    }
    if records != pax::Records::default() {
        return Err(bad("it ends with an extended header without an entry"));
    }
    // In reverse order: contents come after their directory, so that a read-only directory becomes read-only last.
    for Entry { path, mode, modified, .. } in directories.iter().rev() {
        adjust(inner, path, Some(*mode), *modified).await?;
    }
    rest_is_empty(&mut input).await?;
    Ok(input.finish(entries))
}

/// Reads the next header. Returns `None` at the end, which is a block of zeros.
async fn next_header(input: &mut (impl AsyncRead + Unpin)) -> Result<Option<Header>> {
    let mut header = Header::new_old();
    input.read_exact(header.as_mut_bytes()).await.map_err(unreadable)?;
    if header.as_bytes().iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let mut sum = header.clone();
    sum.set_cksum();
    match (header.cksum(), sum.cksum()) {
        (Ok(one), Ok(other)) if one == other => Ok(Some(header)),
        _ => Err(bad("the checksum of a header is wrong")),
    }
}

/// Verifies a header together with the records before it. Returns its meaning.
fn verify(header: &Header, records: &pax::Records) -> Result<Step> {
    let own = header.entry_size().map_err(|_| bad("the size of an entry is malformed"))?;
    let size = records.size.unwrap_or(own);
    let kind = match header.entry_type() {
        EntryType::XHeader => return Ok(Step::Records(own)),
        EntryType::XGlobalHeader => return Ok(Step::Ignored(own)),
        EntryType::GNULongName => return Ok(Step::Long(own, Long::Path)),
        EntryType::GNULongLink => return Ok(Step::Long(own, Long::Target)),
        kind => kind,
    };
    let path = records.path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
    let shown = String::from_utf8_lossy(&path).escape_debug().to_string();
    let path = below(&path).ok_or_else(|| bad(format!("'{shown}' is not a path below {TOP}/")))?;
    let target = || records.target.clone().or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
    let kind = match kind {
        EntryType::Regular | EntryType::Continuous => Kind::File(size),
        _ if size != 0 => return Err(bad(format!("'{shown}' has contents but is not a file"))),
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => {
            let is_valid = |target: &Vec<u8>| !target.is_empty() && target.len() < MAX_PATH && !target.contains(&0);
            Kind::Symlink(
                target().filter(is_valid).ok_or_else(|| bad(format!("the link '{shown}' has no valid target")))?,
            )
        }
        EntryType::Link => {
            let target = target().and_then(|target| below(&target)).filter(|target| !target.is_empty());
            Kind::Link(target.ok_or_else(|| bad(format!("'{shown}' is a hard link to a path outside {TOP}/")))?)
        }
        _ => return Err(bad(format!("'{shown}' is not a file, directory or link"))),
    };
    if path.is_empty() && kind != Kind::Directory {
        return Err(bad(format!("{TOP} itself is not a directory")));
    }
    let mode = header.mode().map_err(|_| bad("the mode of an entry is malformed"))? & PERMISSIONS;
    let modified = match records.modified {
        Some(seconds) => seconds,
        None => header
            .mtime()
            .ok()
            .and_then(|seconds| i64::try_from(seconds).ok())
            .ok_or_else(|| bad("the time of an entry is malformed"))?,
    };
    Ok(Step::Entry(Entry { kind, path, mode, modified }))
}

/// Returns a path of an archive relative to the workspace, or `None` if it is invalid or lies outside.
fn below(path: &[u8]) -> Option<Vec<u8>> {
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let rest = path.strip_prefix(TOP.as_bytes())?;
    if rest.is_empty() {
        return Some(Vec::new());
    }
    let rest = rest.strip_prefix(b"/")?;
    let plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && part.len() <= 255 && !part.contains(&0);
    (rest.len() <= MAX_PATH && rest.split(|&byte| byte == b'/').all(plain)).then(|| rest.to_vec())
}

/// Reads the few bytes of an extended header.
async fn small(input: &mut (impl AsyncRead + Unpin), length: u64) -> Result<Vec<u8>> {
    if length > MAX_RECORDS {
        return Err(bad("the extended header of an entry is too long"));
    }
    let mut bytes = vec![0; (length as usize).next_multiple_of(BLOCK)];
    input.read_exact(&mut bytes).await.map_err(unreadable)?;
    bytes.truncate(length as usize);
    Ok(bytes)
}

/// Writes an entry to the workspace.
async fn put(inner: &Inner, entry: &Entry, input: &mut (impl AsyncRead + Unpin)) -> Result<()> {
    let Entry { kind, path, mode, modified } = entry;
    let make = match kind {
        Kind::File(size) => return put_file(inner, entry, *size, input).await,
        Kind::Directory if path.is_empty() => return Ok(()),
        // Writable for its owner until its contents are complete.
        Kind::Directory => Make::Directory { mode: *mode | 0o700 },
        Kind::Symlink(target) => Make::Symlink { target },
        Kind::Link(target) => Make::Link { target },
    };
    send(inner, path, &Request::Make { root: Root::Workspace, path, make }).await?;
    if matches!(kind, Kind::Symlink(_)) { adjust(inner, path, None, *modified).await } else { Ok(()) }
}

async fn put_file(inner: &Inner, entry: &Entry, size: u64, input: &mut (impl AsyncRead + Unpin)) -> Result<()> {
    let Entry { path, mode, modified, .. } = entry;
    let target = Target { root: Root::Workspace, path, strict: true, mode: *mode, modified: Some((*modified, 0)) };
    let writing = Writing::begin(inner, IMPORT, &target).await?;
    let mut buffer = vec![0; MAX_DATA.min(usize::try_from(size).unwrap_or(MAX_DATA))];
    let mut left = size;
    while left > 0 {
        let max = usize::try_from(left).unwrap_or(MAX_DATA);
        let Some(room) = writing.room(max.min(MAX_DATA)).await? else { break };
        let count = room.bytes();
        input.read_exact(&mut buffer[..count]).await.map_err(unreadable)?;
        writing.data(&buffer[..count], room).await?;
        left -= count as u64;
    }
    let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    if left == 0 {
        input.read_exact(&mut [0; BLOCK][..padding as usize]).await.map_err(unreadable)?;
    }
    writing.finish().await
}

async fn send(inner: &Inner, path: &[u8], request: &Request<'_>) -> Result<()> {
    files::simple(inner, IMPORT, &String::from_utf8_lossy(path), request).await
}

async fn adjust(inner: &Inner, path: &[u8], mode: Option<u32>, modified: i64) -> Result<()> {
    send(inner, path, &Request::Adjust { root: Root::Workspace, path, mode, modified: Some((modified, 0)) }).await
}

/// Checks that only zeros follow the end.
async fn rest_is_empty(input: &mut (impl AsyncRead + Unpin)) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = input.read(&mut buffer).await.map_err(unreadable)?;
        if count == 0 {
            return Ok(());
        }
        if buffer[..count].iter().any(|&byte| byte != 0) {
            return Err(bad("it has data after its end"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: EntryType, path: &str, target: &str, size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        // Set directly, since `set_path` refuses the invalid paths of these tests.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_link_name_literal(target).unwrap();
        header.set_size(size);
        header.set_mode(0o6755);
        header.set_mtime(7);
        header
    }

    fn verified(kind: EntryType, path: &str, target: &str, size: u64) -> Result<Step> {
        verify(&header(kind, path, target, size), &pax::Records::default())
    }

    #[test]
    fn what_belongs_there_is_taken() {
        let Step::Entry(entry) = verified(EntryType::Regular, "workspace/a/b", "", 9).unwrap() else {
            panic!("an entry")
        };
        assert_eq!(entry, Entry { kind: Kind::File(9), path: b"a/b".to_vec(), mode: 0o755, modified: 7 });
        assert!(verified(EntryType::Directory, "./workspace/", "", 0).is_ok());
        assert!(verified(EntryType::Symlink, "workspace/l", "/etc/passwd", 0).is_ok(), "a link is only text");
        assert!(verified(EntryType::Link, "workspace/l", "workspace/a", 0).is_ok());
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for (kind, path, target, size) in [
            (EntryType::Regular, "/workspace/a", "", 0),
            (EntryType::Regular, "etc/passwd", "", 0),
            (EntryType::Regular, "workspace/../etc", "", 0),
            (EntryType::Regular, "workspace//a", "", 0),
            (EntryType::Regular, "workspaces/a", "", 0),
            (EntryType::Regular, "workspace", "", 0),
            (EntryType::Symlink, "workspace", "/etc", 0),
            (EntryType::Symlink, "workspace/l", "", 0),
            (EntryType::Symlink, "workspace/l", "x", 1),
            (EntryType::Link, "workspace/l", "etc/passwd", 0),
            (EntryType::Link, "workspace/l", "workspace/../../x", 0),
            (EntryType::Link, "workspace/l", "workspace", 0),
            (EntryType::Char, "workspace/c", "", 0),
            (EntryType::Block, "workspace/c", "", 0),
            (EntryType::Fifo, "workspace/f", "", 0),
            (EntryType::GNUSparse, "workspace/s", "", 0),
            (EntryType::new(b'?'), "workspace/q", "", 0),
        ] {
            let verified = verified(kind, path, target, size);
            assert_eq!(verified.unwrap_err().kind(), ErrorKind::InvalidInput, "{kind:?} {path} {target}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), BLOCK)) {
            let header = Header::from_byte_slice(&bytes);
            if let Ok(Step::Entry(entry)) = verify(header, &pax::Records::default()) {
                prop_assert!(!entry.path.starts_with(b"/") && !entry.path.split(|&byte| byte == b'/').any(|part| part == b".."));
            }
        }
    }
}

//! Creation of files with permissions, and of symlinks. Every step opens one name in an opened directory, and follows no
//! link.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use cofferdam_contract::{COPIED_MODE, Error, ErrorKind, FileReader, NewEntry, Result, SandboxPath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::files::{COPY_BUFFER, Draft, OPEN_DIR, WorkspaceRoot, blocking, failed, give, not_plain};

const OPERATION: &str = "put";
/// The number of names that are tried for a new link before it gets its own.
const MAX_NAMES: u32 = 1000;

/// Creates a file, directory or symlink, and missing parent directories. Returns the number of bytes written.
pub async fn put(root: WorkspaceRoot, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
    if path.is_workspace() {
        return Err(not_plain(OPERATION, path, FileType::Directory));
    }
    let wanted = path.clone();
    match entry {
        NewEntry::File { mode, modified, contents } => file(root, path, mode, modified, contents).await,
        NewEntry::Directory { mode } => blocking(OPERATION, move || directory(&root, &wanted, mode).map(|()| 0)).await,
        NewEntry::Symlink { target } => blocking(OPERATION, move || symlink(&root, &wanted, &target).map(|()| 0)).await,
    }
}

async fn file(root: WorkspaceRoot, path: &SandboxPath, mode: u32, modified: i64, from: FileReader) -> Result<u64> {
    // A small file needs only one task.
    let (first, rest) = first_piece(from).await?;
    let (count, wanted) = (first.len() as u64, path.clone());
    let begin = move || {
        let fail = |error: io::Error| failed(OPERATION, &wanted, error);
        let (dir, name) = parent(&root, &wanted).map_err(fail)?;
        match kind(&dir, &name).map_err(fail)? {
            Some(FileType::RegularFile | FileType::Symlink) | None => {}
            Some(other) => return Err(not_plain(OPERATION, &wanted, other)),
        }
        let (draft, mut file) = Draft::create(dir, name.into(), root.owner).map_err(fail)?;
        file.write_all(&first).map_err(fail)?;
        match rest {
            Some(rest) => Ok(Some((draft, file, rest))),
            None => finish(draft, &file, mode, modified).map_err(fail).map(|()| None),
        }
    };
    let Some((draft, file, mut rest)) = blocking(OPERATION, begin).await? else { return Ok(count) };
    let fail = |error: io::Error| failed(OPERATION, path, error);
    let mut file = tokio::fs::File::from_std(file);
    let mut written = count;
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        let count = read(&mut rest, &mut buffer).await?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).await.map_err(fail)?;
        written += count as u64;
    }
    file.flush().await.map_err(fail)?;
    let file = file.into_std().await;
    let wanted = path.clone();
    let end = move || finish(draft, &file, mode, modified).map_err(|error| failed(OPERATION, &wanted, error));
    blocking(OPERATION, end).await?;
    Ok(written)
}

/// Reads the first piece of the contents. Returns the reader unless it has ended.
async fn first_piece(mut from: FileReader) -> Result<(Vec<u8>, Option<FileReader>)> {
    let mut piece = vec![0; COPY_BUFFER];
    let mut length = 0;
    while length < piece.len() {
        let count = read(&mut from, &mut piece[length..]).await?;
        if count == 0 {
            piece.truncate(length);
            return Ok((piece, None));
        }
        length += count;
    }
    Ok((piece, Some(from)))
}

async fn read(from: &mut FileReader, into: &mut [u8]) -> Result<usize> {
    from.read(into)
        .await
        .map_err(|error| Error::new(ErrorKind::Io, OPERATION, "cannot read the new contents").with_source(error))
}

fn finish(draft: Draft, file: &File, mode: u32, modified: i64) -> io::Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode & COPIED_MODE))?;
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(0, UTIME_OMIT), last_modification: time(modified, 0) };
    rustix::fs::futimens(file, &times)?;
    draft.keep()
}

fn directory(root: &WorkspaceRoot, path: &SandboxPath, mode: u32) -> Result<()> {
    let fail = |error: io::Error| failed(OPERATION, path, error);
    let (dir, name) = parent(root, path).map_err(fail)?;
    if let Some(other) = kind(&dir, &name).map_err(fail)?
        && other != FileType::Directory
    {
        return Err(Error::new(ErrorKind::Conflict, OPERATION, "a file is in the place of the directory")
            .with_context("path", path.to_string()));
    }
    let created = enter(root, &dir, &name).map_err(fail)?;
    let mode = Mode::from_raw_mode(mode & COPIED_MODE);
    rustix::fs::fchmod(created, mode).map_err(|error| fail(error.into()))
}

fn symlink(root: &WorkspaceRoot, path: &SandboxPath, target: &str) -> Result<()> {
    let fail = |error: io::Error| failed(OPERATION, path, error);
    let (dir, name) = parent(root, path).map_err(fail)?;
    match kind(&dir, &name).map_err(fail)? {
        Some(FileType::RegularFile | FileType::Symlink) | None => {}
        Some(other) => return Err(not_plain(OPERATION, path, other)),
    }
    let make = || -> io::Result<()> {
        for number in 0..MAX_NAMES {
            let aside = format!(".cofferdam-link-{}-{number}", std::process::id());
            match rustix::fs::symlinkat(target, &dir, aside.as_str()) {
                Err(Errno::EXIST) => continue,
                other => other?,
            }
            let created = own(root, &dir, &aside)
                .and_then(|()| rustix::fs::renameat(&dir, aside.as_str(), &dir, &name).map_err(Into::into));
            if created.is_err() {
                let _ = rustix::fs::unlinkat(&dir, aside.as_str(), AtFlags::empty());
            }
            return created;
        }
        Err(Errno::EXIST.into())
    };
    make().map_err(fail)
}

/// Gives a link to the owner of new files.
fn own(root: &WorkspaceRoot, dir: &OwnedFd, name: &str) -> io::Result<()> {
    let Some((uid, gid)) = root.owner else { return Ok(()) };
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    Ok(rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Opens the directory above a path, and creates missing ones. A link on the way returns `ELOOP`.
fn parent(root: &WorkspaceRoot, path: &SandboxPath) -> io::Result<(OwnedFd, OsString)> {
    let path = Path::new(path.as_str());
    let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
    let mut dir = rustix::fs::openat(&root.dir, ".", OPEN_DIR, Mode::empty())?;
    for part in path.parent().into_iter().flat_map(Path::iter) {
        dir = enter(root, &dir, part)?;
    }
    Ok((dir, name))
}

/// Opens a directory by its name, and creates it if it is missing.
fn enter(root: &WorkspaceRoot, dir: &OwnedFd, name: &std::ffi::OsStr) -> io::Result<OwnedFd> {
    let open = || rustix::fs::openat(dir, name, OPEN_DIR | OFlags::NOFOLLOW, Mode::empty());
    match open() {
        Err(Errno::NOENT) => {
            let is_new = match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) => false,
                other => other.map(|()| true)?,
            };
            let created = open()?;
            if is_new {
                give(&created, root.owner)?;
            }
            Ok(created)
        }
        Err(Errno::NOTDIR) if kind(dir, name)? == Some(FileType::Symlink) => Err(Errno::LOOP.into()),
        opened => Ok(opened?),
    }
}

/// Returns the type of a file, or `None` if there is none. No link is followed.
fn kind(dir: &OwnedFd, name: &std::ffi::OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

//! Files of the host that are copied into a sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cofferdam_contract::{CopyPattern, CopyReport, Error, ErrorKind, Result, SandboxPath};
use cofferdam_linux::named::{self, Directory, UntrustedLink};
use cofferdam_linux::walk::{self, Entry};
use rustix::fs::{FileType, Stat};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use tokio_util::io::SyncIoBridge;

use super::{CopyEnd, blocking};
use crate::text;

const OPERATION: &str = "copy_in";
/// The maximum number of bytes between the thread that reads the host's files and the sandbox.
const BUFFERED: usize = 256 * 1024;
/// The maximum number of skipped files that are listed.
const MAX_LISTED: usize = 100;

/// A file or directory of the host, or the contents of a directory. It is opened once: later changes of its path do not
/// matter, and no link is followed.
#[derive(Debug)]
pub struct HostTree {
    source: Source,
    /// The path above it in the copy.
    prefix: PathBuf,
    /// The selected files.
    pattern: Option<CopyPattern>,
}

#[derive(Debug)]
enum Source {
    File(File, OsString),
    Directory(OwnedFd),
}

/// The files of the host that were read.
#[derive(Debug, Default)]
pub struct Sent {
    /// The number of files, directories and links.
    pub entries: u64,
    /// The size of all files.
    pub bytes: u64,
    /// Printable paths of the first files that were skipped, with the reason.
    pub skipped: Vec<String>,
    /// The number of such files.
    pub skipped_count: u64,
}

/// A file of the host that was read.
pub(super) struct HostEntry<'a> {
    pub path: &'a Path,
    pub stat: &'a Stat,
    pub content: HostContent,
}

/// The contents of a file of the host.
pub(super) enum HostContent {
    Directory,
    /// The SHA-256 of what was copied.
    File([u8; 32]),
    Link(OsString),
}

impl HostTree {
    /// Opens a file or directory that a caller named. A name with wildcards (`*`, `?`, `[a-z]`, `{one,two}`, `**`) that
    /// no file has selects all files that it matches. A directory is copied with its name; one that is named without its
    /// name, such as `.`, is copied without it.
    ///
    /// # Errors
    /// - `NotFound` for a missing file, and for a pattern without a directory above it.
    /// - `PathEscape` for a path through an untrusted link, `InvalidInput` for a device or a malformed pattern.
    pub fn named(path: &Path) -> Result<Self> {
        let opened = named::read(path);
        if let Err(error) = &opened
            && error.kind() == io::ErrorKind::NotFound
            && let Some((above, pattern)) = wildcards(path)?
        {
            let top = Directory::open(&above).map_err(|error| unopened(&above, error))?;
            return Ok(Self { source: Source::Directory(top.into()), prefix: PathBuf::new(), pattern: Some(pattern) });
        }
        let opened = opened.map_err(|error| unopened(path, error))?;
        let stat = rustix::fs::fstat(&opened).map_err(|error| unopened(path, error.into()))?;
        let name = path.file_name().map(OsString::from);
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let prefix = name.map(PathBuf::from).unwrap_or_default();
            return Ok(Self { source: Source::Directory(opened.into()), prefix, pattern: None });
        }
        let name = name.ok_or_else(|| unopened(path, io::ErrorKind::InvalidInput.into()))?;
        Ok(Self { source: Source::File(opened, name), prefix: PathBuf::new(), pattern: None })
    }

    /// Selects the contents of an opened directory.
    #[must_use]
    pub fn contents(directory: OwnedFd) -> Self {
        Self { source: Source::Directory(directory), prefix: PathBuf::new(), pattern: None }
    }

    /// Copies the files into a directory of a sandbox's workspace. Calls `on_bytes` with the number of bytes so far.
    ///
    /// # Errors
    /// - `NotFound` for a pattern without a match.
    /// - `Io` if the host's files cannot be read, and those of [`CopyEnd::receive`].
    pub async fn copy_in(
        self,
        sandbox: &(impl CopyEnd + ?Sized),
        to: &SandboxPath,
        on_bytes: impl Fn(u64) + Send + 'static,
    ) -> Result<(Sent, CopyReport)> {
        let is_pattern = self.pattern.is_some();
        let (sent, report) = self.send(sandbox, to, move |_, bytes| on_bytes(bytes)).await?;
        if is_pattern && sent.entries == 0 {
            return Err(Error::new(ErrorKind::NotFound, OPERATION, "the pattern matches no file"));
        }
        Ok((sent, report))
    }

    /// Copies the files into a sandbox. Calls `note` with each, and with the number of bytes so far.
    pub(super) async fn send(
        self,
        sandbox: &(impl CopyEnd + ?Sized),
        to: &SandboxPath,
        note: impl FnMut(Option<HostEntry<'_>>, u64) + Send + 'static,
    ) -> Result<(Sent, CopyReport)> {
        let (from, into) = tokio::io::duplex(BUFFERED);
        let read = tokio::spawn(blocking(OPERATION, move || {
            let into = io::BufWriter::with_capacity(BUFFERED, SyncIoBridge::new(into));
            self.write(into, note)
        }));
        let received = sandbox.receive(to, Box::new(from)).await;
        let sent =
            read.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, OPERATION, "the task ended early")));
        match (sent, received) {
            (Ok(sent), received) => received.map(|report| (sent, report)),
            // The sandbox does not read on after an error of its own.
            (Err(error), Err(received)) if is_broken_pipe(&error) => Err(received),
            (Err(error), _) => Err(error),
        }
    }

    fn write(self, into: impl Write, note: impl FnMut(Option<HostEntry<'_>>, u64)) -> Result<Sent> {
        let Self { source, prefix, pattern } = self;
        let mut writer = Writer { tar: Builder::new(into), note, prefix, pattern, sent: Sent::default() };
        let written = match source {
            Source::File(file, name) => writer.single(file, &name),
            Source::Directory(top) => writer.tree(&top),
        };
        let done = written.and_then(|()| writer.tar.into_inner()?.flush());
        done.map_err(|error| {
            Error::new(ErrorKind::Io, OPERATION, format!("cannot read the files to copy: {error}")).with_source(error)
        })?;
        Ok(writer.sent)
    }
}

fn is_broken_pipe(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe)
}

/// Splits a path at its first component with a wildcard.
fn wildcards(path: &Path) -> Result<Option<(PathBuf, CopyPattern)>> {
    let Some(text) = path.to_str().filter(|text| text.contains(['*', '?', '[', '{'])) else { return Ok(None) };
    let is_wild = |part: &str| part.contains(['*', '?', '[', '{']);
    let parts: Vec<&str> = text.split('/').collect();
    let first = parts.iter().position(|part| is_wild(part)).unwrap_or(parts.len());
    let above = parts[..first].join("/");
    let above = match above.as_str() {
        "" if text.starts_with('/') => "/",
        "" => ".",
        above => above,
    };
    Ok(Some((above.into(), CopyPattern::new(&parts[first..].join("/"))?)))
}

fn unopened(path: &Path, error: io::Error) -> Error {
    let shown = text::path(path);
    if let Some(link) = UntrustedLink::of(&error) {
        return Error::new(ErrorKind::PathEscape, OPERATION, format!("'{shown}' cannot be copied: {link}"))
            .with_remedy(UntrustedLink::REMEDY);
    }
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Error::new(kind, OPERATION, format!("'{shown}' cannot be copied: {error}"))
}

struct Writer<W: Write, N> {
    tar: Builder<W>,
    note: N,
    prefix: PathBuf,
    pattern: Option<CopyPattern>,
    sent: Sent,
}

impl<W: Write, N: FnMut(Option<HostEntry<'_>>, u64)> Writer<W, N> {
    fn single(&mut self, file: File, name: &OsString) -> io::Result<()> {
        let stat = rustix::fs::fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.entry(Path::new(name), &stat, Entry::File(file, size))
    }

    fn tree(&mut self, top: &OwnedFd) -> io::Result<()> {
        if !self.prefix.as_os_str().is_empty() {
            self.entry(Path::new(""), &rustix::fs::fstat(top)?, Entry::Directory)?;
        }
        walk::walk(top, &mut |path, stat, entry| match &self.pattern {
            Some(pattern) if !path.to_str().is_some_and(|path| pattern.covers(path)) => Ok(()),
            _ => self.entry(path, stat, entry),
        })
    }

    fn entry(&mut self, path: &Path, stat: &Stat, entry: Entry) -> io::Result<()> {
        let inside = self.prefix.join(path);
        let content = match entry {
            Entry::Directory => {
                self.tar.append_data(&mut header(stat, EntryType::Directory, 0), &inside, io::empty())?;
                HostContent::Directory
            }
            Entry::File(file, size) => {
                // The header has the length: a file that shrinks meanwhile is filled with zeros, one that grows is cut.
                let whole = file.take(size).chain(io::repeat(0)).take(size);
                let mut hashing = Hashing { whole, hash: Sha256::new(), sent: self.sent.bytes, note: &mut self.note };
                self.tar.append_data(&mut header(stat, EntryType::Regular, size), &inside, &mut hashing)?;
                let Hashing { hash, sent, .. } = hashing;
                self.sent.bytes = sent;
                HostContent::File(hash.finalize().into())
            }
            Entry::Link(target) => {
                self.tar.append_link(&mut header(stat, EntryType::Symlink, 0), &inside, &target)?;
                HostContent::Link(target)
            }
            Entry::Other => {
                self.skip(path, "devices, fifos and sockets are not copied");
                return Ok(());
            }
            Entry::Unreadable(error) => {
                self.skip(path, &error.to_string());
                return Ok(());
            }
        };
        self.sent.entries += 1;
        (self.note)(Some(HostEntry { path, stat, content }), self.sent.bytes);
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: &str) {
        self.sent.skipped_count += 1;
        if self.sent.skipped.len() < MAX_LISTED {
            self.sent.skipped.push(format!("{}: {reason}", text::path(path)));
        }
    }
}

/// The contents of a file, which are hashed and counted while they are read.
struct Hashing<'a, R, N> {
    whole: R,
    hash: Sha256,
    /// The number of bytes of all files so far.
    sent: u64,
    note: &'a mut N,
}

impl<R: Read, N: FnMut(Option<HostEntry<'_>>, u64)> Read for Hashing<'_, R, N> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.whole.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.sent += count as u64;
        (self.note)(None, self.sent);
        Ok(count)
    }
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

//! Unpacking of an untrusted tar into an empty directory that only this process uses.
//!
//! Accepted are directories, files, symbolic links and hard links to files of the same tar, each path once. A path is
//! relative and leads through directories only, never through a link. Set-id bits, owners and extended attributes are
//! dropped. The owner can always read a file and use a directory, since a volume has one owner.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cofferdam_tree::members::Archive;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::EntryType;

use crate::bounds::{Bounds, Counter, MAX_DEPTH, MAX_NAME, MAX_PATH};
use crate::error::{Result, VolumeError, io, shown, too_large};

const PIECE: usize = 128 << 10;
const BLOCK: usize = 4096;
/// Times after this one are unknown to some file systems: the year 2200.
const MAX_TIME: u64 = 7_258_118_400;

/// The result of unpacking.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacked {
    pub files: u64,
    pub bytes: u64,
}

/// Limits of the files that are unpacked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub bounds: Bounds,
    /// Maximum space of the files, without holes.
    pub max_stored: u64,
}

/// Unpacks a tar. `progress` gets the bytes so far.
pub(crate) fn unpack(
    root: &OwnedFd,
    from: impl Read,
    limits: &Limits,
    progress: &mut dyn FnMut(u64),
) -> Result<Unpacked> {
    let mut unpacking = Unpacking {
        root: root.as_fd(),
        counter: Counter::new(limits.bounds),
        stored: 0,
        max_stored: limits.max_stored,
        directories: BTreeMap::new(),
        parent: None,
        progress,
    };
    let mut archive = Archive::new(from);
    for member in archive.members().map_err(unreadable)? {
        unpacking.member(&mut member.map_err(unreadable)?)?;
    }
    archive.finish().map_err(unreadable)?;
    unpacking.finish()
}

fn unreadable(source: std::io::Error) -> VolumeError {
    VolumeError::Stream { operation: "read", source }
}

fn malformed(entry: &[u8], reason: &str) -> VolumeError {
    VolumeError::Malformed { entry: shown(entry), reason: reason.to_owned() }
}

struct Unpacking<'a> {
    root: BorrowedFd<'a>,
    counter: Counter,
    stored: u64,
    max_stored: u64,
    /// Modes and times of directories, which are set at the end.
    directories: BTreeMap<PathBuf, (u32, u64)>,
    /// The directory of the last entry.
    parent: Option<(PathBuf, OwnedFd)>,
    progress: &'a mut dyn FnMut(u64),
}

impl Unpacking<'_> {
    fn member<R: Read>(&mut self, member: &mut tar::Entry<'_, R>) -> Result<()> {
        let kind = member.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let bytes = member.path_bytes().into_owned();
        let parts = parse(&bytes)?;
        let mode = member.header().mode().map_err(|_| malformed(&bytes, "its mode is invalid"))?;
        let modified = member.header().mtime().unwrap_or(0).min(MAX_TIME);
        let size = if matches!(kind, EntryType::Regular | EntryType::Continuous) { member.size() } else { 0 };
        self.counter.add(size).map_err(too_large)?;
        self.store(BLOCK as u64)?;
        let Some((name, above)) = parts.split_last() else {
            if kind != EntryType::Directory {
                return Err(malformed(&bytes, "the volume itself is a directory"));
            }
            self.directories.insert(PathBuf::new(), (mode, modified));
            return Ok(());
        };
        let above: PathBuf = above.iter().collect();
        match kind {
            EntryType::Directory => {
                let path = above.join(name);
                let parent = self.parent(&above, &bytes)?;
                match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                    // It may be the implied directory of an earlier entry.
                    Err(Errno::EXIST) => open(self.root, &path).map(drop).map_err(refused(&bytes))?,
                    created => created.map_err(refused(&bytes))?,
                }
                self.directories.insert(path, (mode, modified));
            }
            EntryType::Regular | EntryType::Continuous => {
                let parent = self.parent(&above, &bytes)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
                let file = File::from(file.map_err(refused(&bytes))?);
                self.contents(member, &file, size, &bytes)?;
                let mode = Mode::from_raw_mode(mode & 0o777 | 0o400);
                rustix::fs::fchmod(&file, mode).map_err(refused(&bytes))?;
                rustix::fs::futimens(&file, &times(modified)).map_err(refused(&bytes))?;
            }
            EntryType::Symlink => {
                let target = link_target(member, &bytes)?;
                let parent = self.parent(&above, &bytes)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), parent, name).map_err(refused(&bytes))?;
            }
            EntryType::Link => {
                let target = link_target(member, &bytes)?;
                self.link(&target, &above, name, &bytes)?;
            }
            EntryType::Block | EntryType::Char | EntryType::Fifo => {
                return Err(malformed(&bytes, "devices and fifos are not allowed"));
            }
            _ => return Err(malformed(&bytes, "the type of the entry is not allowed")),
        }
        Ok(())
    }

    /// Writes the contents of a file. Blocks of zeros become holes.
    fn contents(&mut self, from: &mut impl Read, file: &File, size: u64, shown: &[u8]) -> Result<()> {
        let failed = |error: std::io::Error| io("write", Path::new(OsStr::from_bytes(shown)))(error);
        let mut piece = vec![0; PIECE];
        let before = self.counter.bytes - size;
        let mut at = 0;
        while at < size {
            let max = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
            let length = fill(from, &mut piece[..max]).map_err(unreadable)?;
            if length < max {
                return Err(unreadable(std::io::ErrorKind::UnexpectedEof.into()));
            }
            for block in piece[..length].chunks(BLOCK) {
                if block.iter().any(|byte| *byte != 0) {
                    self.store(block.len() as u64)?;
                    file.write_all_at(block, at).map_err(failed)?;
                }
                at += block.len() as u64;
            }
            (self.progress)(before + at);
        }
        file.set_len(size).map_err(failed)
    }

    fn store(&mut self, bytes: u64) -> Result<()> {
        self.stored = self.stored.saturating_add(bytes);
        if self.stored > self.max_stored { Err(VolumeError::DoesNotFit { size: self.max_stored }) } else { Ok(()) }
    }

    fn link(&mut self, target: &[u8], above: &Path, name: &OsStr, shown: &[u8]) -> Result<()> {
        let missing = || malformed(shown, "a hard link leads to no earlier file of the tar");
        let parts = parse(target)?;
        let (last, directory) = parts.split_last().ok_or_else(missing)?;
        let from = open(self.root, &directory.iter().collect::<PathBuf>()).map_err(|_| missing())?;
        let stat = rustix::fs::statat(&from, last, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(missing());
        }
        let parent = self.parent(above, shown)?;
        rustix::fs::linkat(&from, last, parent, name, AtFlags::empty()).map_err(refused(shown))
    }

    /// Opens the directory of an entry. Creates what is missing.
    fn parent(&mut self, path: &Path, shown: &[u8]) -> Result<BorrowedFd<'_>> {
        if self.parent.as_ref().is_none_or(|(known, _)| known != path) {
            self.directory(path, shown)?;
            let opened = open(self.root, path).map_err(refused(shown))?;
            self.parent = Some((path.to_owned(), opened));
        }
        Ok(self.parent.as_ref().map_or(self.root, |(_, parent)| parent.as_fd()))
    }

    /// Creates a directory and those above it that are missing.
    fn directory(&mut self, path: &Path, shown: &[u8]) -> Result<()> {
        match open(self.root, path) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => {
                let (Some(name), Some(above)) = (path.file_name(), path.parent()) else {
                    return Err(refused(shown)(Errno::NOENT));
                };
                self.directory(above, shown)?;
                let above = open(self.root, above).map_err(refused(shown))?;
                rustix::fs::mkdirat(above, name, Mode::RWXU).map_err(refused(shown))?;
                self.counter.add(0).map_err(too_large)?;
                self.store(BLOCK as u64)?;
                self.directories.entry(path.to_owned()).or_insert((0o755, 0));
                Ok(())
            }
            Err(error) => Err(refused(shown)(error)),
        }
    }

    /// Sets modes and times of directories, the deepest first.
    fn finish(mut self) -> Result<Unpacked> {
        self.directories.entry(PathBuf::new()).or_insert((0o755, 0));
        for (path, (mode, modified)) in self.directories.iter().rev() {
            let failed = refused(path.as_os_str().as_bytes());
            let set = open(self.root, path).and_then(|directory| {
                rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o1777 | 0o700))?;
                if *modified == 0 { Ok(()) } else { rustix::fs::futimens(&directory, &times(*modified)) }
            });
            set.map_err(failed)?;
        }
        Ok(Unpacked { files: self.counter.files, bytes: self.counter.bytes })
    }
}

/// Splits a path. An empty path is the volume itself.
fn parse(bytes: &[u8]) -> Result<Vec<OsString>> {
    let wrong = |reason| Err(malformed(bytes, reason));
    if bytes.first() == Some(&b'/') {
        return wrong("the path is absolute");
    }
    if bytes.len() > MAX_PATH || bytes.contains(&0) {
        return wrong("the path is too long or has a NUL");
    }
    let mut parts = Vec::new();
    for part in bytes.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return wrong("the path has '..'"),
            _ if part.len() > MAX_NAME => return wrong("a component of the path is too long"),
            _ => parts.push(OsString::from_vec(part.to_vec())),
        }
    }
    if parts.len() > MAX_DEPTH { wrong("the path is too deep") } else { Ok(parts) }
}

fn link_target<R: Read>(member: &tar::Entry<'_, R>, shown: &[u8]) -> Result<Vec<u8>> {
    let target = member.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
    let is_valid = !target.is_empty() && target.len() <= MAX_PATH && !target.contains(&0);
    if is_valid { Ok(target) } else { Err(malformed(shown, "the target of the link is invalid")) }
}

/// Opens a directory without following links.
fn open(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Converts an error of the file system. Some are due to the tar.
fn refused(entry: &[u8]) -> impl FnOnce(Errno) -> VolumeError {
    let path = PathBuf::from(OsStr::from_bytes(entry));
    move |errno| {
        let bytes = path.as_os_str().as_bytes();
        match errno {
            Errno::EXIST => malformed(bytes, "the path occurs twice"),
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV => malformed(bytes, "the path leads through a link or a file"),
            errno => io("unpack", &path)(errno),
        }
    }
}

fn times(modified: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(modified).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// Reads until the buffer is full or the stream ends.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match from.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

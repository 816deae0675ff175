//! Capture of a change set from a directory in which the guest worked.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self as std_io, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::bounds::{Bounds, MAX_DEPTH, MAX_PATH, MAX_VISITED};
use crate::error::{ChangesError, Result, io};
use crate::fingerprint::{Base, FileKind, Fingerprint, Subtree};
use crate::header::Header;
use crate::layer::LayerWriter;
use crate::names;
use crate::overlay::{self, Mark, Marks};
use crate::tree;

/// Maximum number of skipped files in a summary. The rest is counted.
pub const MAX_SKIPPED: usize = 1000;
const PIECE: usize = 128 << 10;

/// Result of a capture.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of entries.
    pub entries: usize,
    /// Size of all contents, in bytes.
    pub bytes: u64,
    /// Files that are missing or incomplete, at most [`MAX_SKIPPED`].
    pub skipped: Vec<Skipped>,
    /// Number of missing or incomplete files.
    pub skipped_count: usize,
}

/// A file that is missing or incomplete in a change set.
#[derive(Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Path relative to the workspace.
    pub path: PathBuf,
    /// Reason.
    pub reason: SkipReason,
}

/// Reason why a file is missing or incomplete in a change set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// Devices, fifos and sockets have no place in a workspace.
    NotAFile,
    /// The name has the form of a whiteout.
    ReservedName,
    /// The path is too long or too deep.
    TooDeep,
    /// The operating system refused access.
    Unreadable,
    /// The guest changed the file during the capture. Its contents are incomplete.
    ChangedMeanwhile,
    /// The overlay stores a reference instead of the file. Mount it with `redirect_dir=off,metacopy=off`.
    Redirected,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAFile => "devices, fifos and sockets are not captured",
            Self::ReservedName => "names that begin with .wh. are reserved",
            Self::TooDeep => "the path is too long or too deep",
            Self::Unreadable => "the file cannot be read",
            Self::ChangedMeanwhile => "the guest changed the file during the capture, its contents are incomplete",
            Self::Redirected => "the overlay refers to another file; mount it with redirect_dir=off,metacopy=off",
        })
    }
}

/// Captures the changes in the upper directory of an overlay over `base`, which has its marks in `marks`. The guest may
/// still change the directory.
///
/// Permissions of the workspace itself are no change. Only root can read [`Marks::Trusted`]: captured by another user,
/// deletions in directories that the guest created again would be missing.
///
/// # Errors
///
/// [`ChangesError::TooLarge`], and those of `out` and of the operating system.
pub fn capture_overlay(
    upper: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
    marks: Marks,
    header: &Header,
    out: impl Write,
    bounds: &Bounds,
) -> Result<Summary> {
    let mode = if overlay::is_opaque(upper, marks) { Mode::Whole(marks) } else { Mode::Overlay(marks) };
    Capture::run(upper, base, mode, header, out, bounds)
}

/// Captures the changes in a full copy of `base` that the guest changed.
///
/// # Errors
///
/// [`ChangesError::TooLarge`], and those of `out` and of the operating system.
pub fn capture_comparison(
    now: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
    header: &Header,
    out: impl Write,
    bounds: &Bounds,
) -> Result<Summary> {
    Capture::run(now, base, Mode::Comparison, header, out, bounds)
}

/// Meaning of a file that a directory does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The upper directory of an overlay: the file is unchanged.
    Overlay(Marks),
    /// An opaque directory of an overlay: the file is deleted.
    Whole(Marks),
    /// A full copy: the file is deleted, and attributes of overlays have no meaning.
    Comparison,
}

struct Capture<W: Write> {
    out: LayerWriter<W>,
    bounds: Bounds,
    visited: usize,
    summary: Summary,
}

/// A name in the directory of the guest, and in the directory of the workspace if there is one.
struct EntryLocation<'a> {
    upper: BorrowedFd<'a>,
    base: Option<BorrowedFd<'a>>,
    name: &'a OsStr,
    path: &'a Path,
}

impl EntryLocation<'_> {
    /// Returns the properties of the file in the workspace.
    fn base_stat(&self) -> Result<Option<Stat>> {
        let Some(base) = self.base else { return Ok(None) };
        tree::stat(base, self.name).map_err(io("inspect", self.path))
    }

    /// Describes the file in the workspace for a change to a file of type `to`.
    fn base_for(&self, stat: Option<&Stat>, to: Option<FileKind>) -> Result<Option<Base>> {
        let (Some(stat), Some(base)) = (stat, self.base) else { return Ok(None) };
        let fingerprint = Fingerprint::of(stat);
        let mut tree = None;
        if fingerprint.kind == FileKind::Directory && to != Some(FileKind::Directory) {
            let below = tree::subdirectory(base, self.name).map_err(io("open", self.path))?;
            tree = Some(Subtree::walk(below.as_fd())?.digest());
        }
        Ok(Some(Base { fingerprint, tree }))
    }
}

impl<W: Write> Capture<W> {
    fn run(
        upper: BorrowedFd<'_>,
        base: BorrowedFd<'_>,
        mode: Mode,
        header: &Header,
        out: W,
        bounds: &Bounds,
    ) -> Result<Summary> {
        let out = LayerWriter::new(out, header)?;
        let mut capture = Self { out, bounds: *bounds, visited: 0, summary: Summary::default() };
        capture.directory(upper, Some(base), Path::new(""), mode, 1)?;
        capture.out.finish()?;
        Ok(capture.summary)
    }

    fn directory(
        &mut self,
        upper: BorrowedFd<'_>,
        base: Option<BorrowedFd<'_>>,
        path: &Path,
        mode: Mode,
        depth: usize,
    ) -> Result<()> {
        let names = self.names(upper, path)?;
        let mut present: BTreeSet<&OsStr> = BTreeSet::new();
        for name in &names {
            let path = path.join(name);
            if names::is_reserved(Path::new(name)) {
                self.skip(&path, SkipReason::ReservedName);
            } else if is_too_deep(&path, depth) {
                self.skip(&path, SkipReason::TooDeep);
            } else if !self.entry(&EntryLocation { upper, base, name, path: &path }, mode, depth)? {
                continue;
            }
            present.insert(name);
        }
        match base {
            Some(base) if !matches!(mode, Mode::Overlay(_)) => self.missing(base, path, mode, depth, &present),
            _ => Ok(()),
        }
    }

    /// Deletes files of the workspace that the guest does not have any more.
    fn missing(
        &mut self,
        base: BorrowedFd<'_>,
        path: &Path,
        mode: Mode,
        depth: usize,
        present: &BTreeSet<&OsStr>,
    ) -> Result<()> {
        for name in self.names(base, path)? {
            let path = path.join(&name);
            if present.contains(name.as_os_str()) || names::is_reserved(Path::new(&name)) {
                continue;
            }
            if is_too_deep(&path, depth) {
                self.skip(&path, SkipReason::TooDeep);
            } else {
                self.delete(&EntryLocation { upper: base, base: Some(base), name: &name, path: &path }, mode)?;
            }
        }
        Ok(())
    }

    fn names(&mut self, directory: BorrowedFd<'_>, path: &Path) -> Result<Vec<OsString>> {
        let names = tree::names(directory, MAX_VISITED - self.visited).map_err(io("read", path))?;
        self.visited += names.len();
        Ok(names)
    }

    /// Captures one file. Returns false if it vanished meanwhile.
    fn entry(&mut self, location: &EntryLocation<'_>, mode: Mode, depth: usize) -> Result<bool> {
        let Some(stat) = tree::stat(location.upper, location.name).map_err(io("inspect", location.path))? else {
            return Ok(false);
        };
        if mode != Mode::Comparison && overlay::is_whiteout_device(&stat) {
            return self.delete(location, mode).map(|()| true);
        }
        let captured = match tree::kind(&stat) {
            FileType::Directory => self.subdirectory(location, mode, depth),
            FileType::RegularFile => self.regular(location, mode),
            FileType::Symlink => self.symlink(location),
            kind => {
                let same = location.base_stat()?.is_some_and(|base| tree::kind(&base) == kind);
                if !same {
                    self.skip(location.path, SkipReason::NotAFile);
                }
                Ok(())
            }
        };
        captured.map(|()| true)
    }

    fn delete(&mut self, location: &EntryLocation<'_>, mode: Mode) -> Result<()> {
        // A whiteout of a file that the workspace does not have has no effect.
        let Some(stat) = location.base_stat()? else { return Ok(()) };
        if mode == Mode::Comparison && !self.was_copied(location, &stat)? {
            return Ok(());
        }
        let base = location.base_for(Some(&stat), None)?;
        self.count(0)?;
        self.out.whiteout(location.path, base.as_ref())
    }

    /// Returns true if a file could be in a full copy at all. Its absence is no deletion otherwise.
    fn was_copied(&mut self, location: &EntryLocation<'_>, stat: &Stat) -> Result<bool> {
        let Some(base) = location.base else { return Ok(false) };
        let opened = match tree::kind(stat) {
            FileType::Symlink => return Ok(true),
            FileType::RegularFile => tree::open_file(base, location.name).map(|_| ()),
            FileType::Directory => tree::subdirectory(base, location.name).map(|_| ()),
            _ => return Ok(false),
        };
        Ok(self.readable(location, opened)?.is_some())
    }

    fn subdirectory(&mut self, location: &EntryLocation<'_>, mode: Mode, depth: usize) -> Result<()> {
        let Some(below) = self.readable(location, tree::subdirectory(location.upper, location.name))? else {
            return Ok(());
        };
        let stat = rustix::fs::fstat(&below).map_err(io("inspect", location.path))?;
        let mode_below = match mode {
            Mode::Comparison => Mode::Comparison,
            Mode::Overlay(marks) | Mode::Whole(marks) if overlay::mark(&below, marks) == Some(Mark::Redirect) => {
                self.skip(location.path, SkipReason::Redirected);
                return Ok(());
            }
            // Below an opaque directory, no directory is merged with a lower one.
            Mode::Whole(marks) => Mode::Whole(marks),
            Mode::Overlay(marks) if overlay::is_opaque(below.as_fd(), marks) => Mode::Whole(marks),
            Mode::Overlay(marks) => Mode::Overlay(marks),
        };
        let (base_stat, base_below) = self.base_directory(location)?;
        let permissions = stat.st_mode & 0o7777;
        let unchanged = base_below.is_some() && base_stat.is_some_and(|base| base.st_mode & 0o7777 == permissions);
        if !unchanged {
            let base = location.base_for(base_stat.as_ref(), Some(FileKind::Directory))?;
            self.count(0)?;
            self.out.directory(location.path, permissions, base.as_ref())?;
        }
        self.directory(below.as_fd(), base_below.as_ref().map(AsFd::as_fd), location.path, mode_below, depth + 1)
    }

    fn base_directory(&self, location: &EntryLocation<'_>) -> Result<(Option<Stat>, Option<OwnedFd>)> {
        let stat = location.base_stat()?;
        match (&stat, location.base) {
            (Some(found), Some(base)) if tree::kind(found) == FileType::Directory => {
                let below = tree::subdirectory(base, location.name).map_err(io("open", location.path))?;
                Ok((stat, Some(below)))
            }
            _ => Ok((stat, None)),
        }
    }

    fn symlink(&mut self, location: &EntryLocation<'_>) -> Result<()> {
        let Some(target) = self.readable(location, tree::target(location.upper, location.name))? else { return Ok(()) };
        let stat = location.base_stat()?;
        if let (Some(stat), Some(base)) = (&stat, location.base)
            && tree::kind(stat) == FileType::Symlink
            && tree::target(base, location.name).map_err(io("read", location.path))? == target
        {
            return Ok(());
        }
        let base = location.base_for(stat.as_ref(), Some(FileKind::Symlink))?;
        self.count(0)?;
        self.out.symlink(location.path, &target, base.as_ref())
    }

    fn regular(&mut self, location: &EntryLocation<'_>, mode: Mode) -> Result<()> {
        let Some(opened) = self.readable(location, tree::open_file(location.upper, location.name))? else {
            return Ok(());
        };
        let Some((mut file, stat)) = opened else {
            self.skip(location.path, SkipReason::ChangedMeanwhile);
            return Ok(());
        };
        if let Mode::Overlay(marks) | Mode::Whole(marks) = mode {
            match overlay::mark(&file, marks) {
                Some(Mark::Whiteout) if stat.st_size == 0 => {
                    return self.delete(location, mode);
                }
                Some(Mark::Metacopy) => {
                    self.skip(location.path, SkipReason::Redirected);
                    return Ok(());
                }
                _ => {}
            }
        }
        let base_stat = location.base_stat()?;
        let same = same_properties(&stat, base_stat.as_ref());
        if same && self.same_content(location, &mut file)? {
            return Ok(());
        }
        let base = location.base_for(base_stat.as_ref(), Some(FileKind::File))?;
        let size = tree::size(&stat);
        self.count(size)?;
        file.rewind().map_err(io("read", location.path))?;
        let read = self.out.file(location.path, stat.st_mode & 0o7777, size, &file, base.as_ref())?;
        // Also a file that grew, or was changed within its first bytes.
        let after = rustix::fs::fstat(&file).map_err(io("inspect", location.path))?;
        if read != size || Fingerprint::of(&after) != Fingerprint::of(&stat) {
            self.skip(location.path, SkipReason::ChangedMeanwhile);
        }
        Ok(())
    }

    fn same_content(&mut self, location: &EntryLocation<'_>, file: &mut File) -> Result<bool> {
        let Some(base) = location.base else { return Ok(false) };
        let base = match tree::open_file(base, location.name) {
            Ok(Some((base, _))) => base,
            Ok(None) => return Ok(false),
            // Contents that cannot be compared count as changed.
            Err(error) if error.kind() == std_io::ErrorKind::PermissionDenied => return Ok(false),
            Err(error) => return Err(io("open", location.path)(error)),
        };
        equal(file, base).map_err(io("compare", location.path))
    }

    /// Records a file that the guest made unreadable or removed meanwhile.
    fn readable<T>(&mut self, location: &EntryLocation<'_>, opened: std_io::Result<T>) -> Result<Option<T>> {
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(error) => {
                let reason = match Errno::from_io_error(&error) {
                    Some(Errno::ACCESS | Errno::PERM) => SkipReason::Unreadable,
                    Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL) => SkipReason::ChangedMeanwhile,
                    _ => return Err(io("open", location.path)(error)),
                };
                self.skip(location.path, reason);
                Ok(None)
            }
        }
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.summary.entries += 1;
        self.summary.bytes = self.summary.bytes.saturating_add(bytes);
        if self.summary.entries > self.bounds.max_entries {
            return Err(ChangesError::TooLarge { what: "entries", max: self.bounds.max_entries as u64 });
        }
        if self.summary.bytes > self.bounds.max_bytes {
            return Err(ChangesError::TooLarge { what: "bytes", max: self.bounds.max_bytes });
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: SkipReason) {
        self.summary.skip(path.to_owned(), reason);
    }
}

impl Summary {
    pub(crate) fn skip(&mut self, path: PathBuf, reason: SkipReason) {
        self.skipped_count += 1;
        if self.skipped.len() < MAX_SKIPPED {
            self.skipped.push(Skipped { path, reason });
        }
    }
}

fn is_too_deep(path: &Path, depth: usize) -> bool {
    depth > MAX_DEPTH || path.as_os_str().len() > MAX_PATH
}

fn same_properties(now: &Stat, base: Option<&Stat>) -> bool {
    base.is_some_and(|base| (base.st_mode, base.st_size) == (now.st_mode, now.st_size))
}

/// Returns true if both have the same bytes.
pub(crate) fn equal(mut one: impl Read, mut other: impl Read) -> std_io::Result<bool> {
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let length = fill(&mut one, &mut left)?;
        if length != fill(&mut other, &mut right)? || left[..length] != right[..length] {
            return Ok(false);
        }
        if length < PIECE {
            return Ok(true);
        }
    }
}

fn fill(from: &mut impl Read, into: &mut [u8]) -> std_io::Result<usize> {
    let mut length = 0;
    while length < into.len() {
        match from.read(&mut into[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std_io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

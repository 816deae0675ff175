//! Unpacking of layers to a directory.
//!
//! Layers are untrusted, and a link in one may redirect later paths. So every step uses descriptors, and paths are
//! resolved as if the directory were the root: nothing is created, changed or removed outside of it. A layer removes
//! files of lower layers with whiteouts, which are names that start with `.wh.`; these are never created as files.
//! Sockets, FIFOs and devices are left out, as are owners, extended attributes, set-user-ID and set-group-ID bits.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, linkat, mkdirat, mknodat, openat2,
    statat, symlinkat,
};
use rustix::io::Errno;
use tar::{EntryType, Header};

use super::dropped::Dropped;
#[cfg(feature = "disk")]
use super::remove::clear;
use super::remove::{count, kind_of, remove};
use super::{LayerError, Result, bad, io as io_error};
pub(crate) use cofferdam_tree::ext4::Needs;
use cofferdam_tree::members::Archive;

const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of a whole directory: files of lower layers in it are removed.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that start with this, except the one above, are notes of AUFS.
const NOTE: &[u8] = b".wh..wh.";
/// The mark of overlayfs on a directory that hides the one below, for mounts with the option `userxattr`.
const OPAQUE_MARK: &str = "user.overlay.opaque";
/// Maximum depth of directories: removing the unpacked tree opens one descriptor for each level.
pub(crate) const MAX_DEPTH: usize = 256;
/// Maximum number of entries of a layer, or of a root file system.
pub(crate) const MAX_ENTRIES: u64 = 4 << 20;
const BLOCK: u64 = 4096;
/// Size of the pieces in which contents are copied.
const PIECE: usize = 256 << 10;

/// The meaning of names that start with `.wh.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    #[cfg(feature = "disk")]
    /// Files in the directory are removed before the layer's files are unpacked.
    Applied,
    /// Marks for overlayfs are created: the directory has this layer only.
    Marked,
    /// Ordinary names: the tar is no layer.
    Ordinary,
}

/// Modes and modification times of directories, by their real paths.
pub(crate) type Modes = BTreeMap<PathBuf, (u32, Option<i64>)>;

/// A directory to which layers are unpacked.
#[derive(Debug)]
pub(crate) struct Tree {
    path: PathBuf,
    root: OwnedFd,
    max_bytes: u64,
    needs: Needs,
    whiteouts: Whiteouts,
    /// Until the end, the owner has all permissions.
    modes: Modes,
    /// The directory of the last entry, which is often that of the next one.
    last: Option<(Vec<OsString>, Rc<OwnedFd>, PathBuf)>,
    /// True if the layer hides everything below.
    is_opaque: bool,
    dropped: Dropped,
    piece: Vec<u8>,
}

pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

/// Splits a path below the root into its parts; refuses `..`.
fn parts(path: &Path) -> Result<Vec<OsString>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_owned()),
            Component::CurDir | Component::RootDir => {}
            _ => return Err(bad(format!("{} leads out of the root file system", shown(path)))),
        }
    }
    if parts.len() > MAX_DEPTH { Err(too_deep()) } else { Ok(parts) }
}

/// Opens a directory, with `root` as the root of the path.
pub(crate) fn inside(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), resolve)
}

impl Tree {
    /// Opens an empty directory that only this process uses, for files of at most `max_bytes`.
    pub(crate) fn new(path: &Path, max_bytes: u64, whiteouts: Whiteouts) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| io_error("open", path)(error.into()))?;
        let path = path.canonicalize().map_err(io_error("inspect", path))?;
        Ok(Self {
            path,
            root,
            max_bytes,
            needs: Needs::default(),
            whiteouts,
            modes: Modes::new(),
            last: None,
            is_opaque: false,
            dropped: Dropped::default(),
            piece: vec![0; PIECE],
        })
    }

    #[cfg(feature = "disk")]
    /// Returns the real path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the layer hides all files of the layers below. Overlayfs has no mark for this.
    pub(crate) fn is_opaque(&self) -> bool {
        self.is_opaque
    }

    /// Returns what was not kept of the layer so far.
    pub(crate) fn dropped(&self) -> Dropped {
        self.dropped
    }

    #[cfg(feature = "disk")]
    /// Removes the files for which a layer has whiteouts. Must be called for each layer before [`Self::extract`].
    pub(crate) fn remove(&mut self, layer: impl Read) -> Result<()> {
        let mut archive = Archive::new(layer);
        let mut entries = 0;
        self.last = None;
        for entry in archive.members().map_err(bad_layer)? {
            let entry = entry.map_err(bad_layer)?;
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(too_many());
            }
            let mut path = parts(&entry.path().map_err(bad_layer)?)?;
            let Some(name) = path.pop() else { continue };
            if !name.as_bytes().starts_with(WHITEOUT) {
                continue;
            }
            let parent: PathBuf = path.iter().collect();
            // A missing file needs no removal.
            let Ok(parent) = inside(self.root.as_fd(), &parent) else { continue };
            if name.as_bytes() == OPAQUE {
                clear(parent.as_fd(), 0)?;
            } else if let Some(name) = hidden(&name) {
                remove(parent.as_fd(), name, 0)?;
            }
        }
        Ok(())
    }

    /// Unpacks a layer's files into the directory, replacing existing ones.
    pub(crate) fn extract(&mut self, layer: impl Read) -> Result<()> {
        let mut archive = Archive::new(layer);
        let mut entries = 0;
        for entry in archive.members().map_err(bad_layer)? {
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(too_many());
            }
            self.entry(entry.map_err(bad_layer)?)?;
        }
        Ok(())
    }

    fn entry(&mut self, mut entry: tar::Entry<'_, impl Read>) -> Result<()> {
        let kind = entry.header().entry_type();
        if !matches!(
            kind,
            EntryType::Regular | EntryType::Continuous | EntryType::Directory | EntryType::Symlink | EntryType::Link
        ) {
            self.dropped.special += u64::from(is_special(kind));
            return Ok(());
        }
        let records = Records::read(&mut entry).map_err(bad_layer)?;
        if records.sparse_map {
            return Err(bad("the tar cannot be read: it has a sparse file; pack it without --sparse"));
        }
        let path = parts(&entry.path().map_err(bad_layer)?)?;
        let mode = entry.header().mode().map_err(bad_layer)?;
        let time = entry.header().mtime().ok().and_then(|time| i64::try_from(time).ok());
        let Some((name, parents)) = path.split_last() else {
            self.modes.insert(PathBuf::new(), (mode & 0o1777 | 0o500, time));
            return Ok(());
        };
        self.count(entry.size())?;
        if self.whiteouts != Whiteouts::Ordinary && name.as_bytes().starts_with(WHITEOUT) {
            return match self.whiteouts {
                Whiteouts::Marked => self.mark(parents, name),
                _ => Ok(()),
            };
        }
        self.note_dropped(kind, entry.header(), mode, &records);
        let (parent, real) = self.directory(parents)?;
        let target = real.join(name);
        check_depth(&target)?;
        let wrong = |error: Errno| failed(&target, error.into());
        match kind {
            EntryType::Directory => {
                self.create_directory(&parent, name).map_err(wrong)?;
                self.modes.insert(target, (mode & 0o1777 | 0o500, time));
            }
            EntryType::Symlink => {
                let to = entry.link_name().map_err(bad_layer)?.ok_or_else(|| bad("a link leads nowhere"))?;
                self.replace(&parent, name)?;
                symlinkat(&*to, &parent, name).map_err(wrong)?;
                set_time(&parent, name, time).map_err(wrong)?;
            }
            EntryType::Link => {
                let to = entry.link_name().map_err(bad_layer)?.ok_or_else(|| bad("a link leads nowhere"))?;
                self.link(&parts(&to)?, &parent, name)?;
            }
            _ => {
                self.replace(&parent, name)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
                let file = File::from(file);
                let size = entry.size();
                copy(&mut entry, &file, size, &mut self.piece).map_err(|error| failed(&target, error))?;
                // The user who unpacks the image must be able to read it.
                let mode = Mode::from_raw_mode(mode & 0o777 | 0o400);
                rustix::fs::fchmod(&file, mode).map_err(wrong)?;
                if let Some(time) = time {
                    rustix::fs::futimens(&file, &times(time)).map_err(wrong)?;
                }
            }
        }
        Ok(())
    }

    /// Counts what is not kept of a file. A hard link is another name of a file that was counted.
    fn note_dropped(&mut self, kind: EntryType, header: &Header, mode: u32, records: &Records) {
        if kind == EntryType::Link {
            return;
        }
        let is_others = |id: io::Result<u64>| id.is_ok_and(|id| id != 0);
        self.dropped.owners += u64::from(is_others(header.uid()) || is_others(header.gid()));
        self.dropped.set_id += u64::from(kind != EntryType::Symlink && mode & 0o6000 != 0);
        self.dropped.attributes += u64::from(records.attributes);
    }

    /// Creates the mark of overlayfs for a whiteout.
    fn mark(&mut self, parents: &[OsString], name: &OsStr) -> Result<()> {
        if name.as_bytes() == OPAQUE && parents.is_empty() {
            self.is_opaque = true;
            return Ok(());
        }
        let (parent, real) = self.directory(parents)?;
        if name.as_bytes() == OPAQUE {
            return if real.as_os_str().is_empty() {
                self.is_opaque = true;
                Ok(())
            } else {
                set_opaque(&parent, &real)
            };
        }
        let Some(name) = hidden(name) else { return Ok(()) };
        let target = real.join(name);
        check_depth(&target)?;
        match kind_of(parent.as_fd(), name) {
            None => mknodat(&parent, name, FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(|error| cannot_mark(&target, error)),
            // A whiteout hides files of lower layers only. A directory of this layer stays, and hides the one below.
            Some(FileType::Directory) => {
                let directory = open_child(&parent, name).map_err(|error| failed(&target, error.into()))?;
                set_opaque(&directory, &target)
            }
            Some(_) => Ok(()),
        }
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.needs.add(bytes);
        if self.needs.inodes > MAX_ENTRIES {
            return Err(too_many());
        }
        let bytes = self.needs.block_bytes();
        if bytes > self.max_bytes { Err(LayerError::TooLarge { bytes, max: self.max_bytes }) } else { Ok(()) }
    }

    /// Opens the directory of these parts, creates it if it is missing, and returns its real path below the root.
    fn directory(&mut self, path: &[OsString]) -> Result<(Rc<OwnedFd>, PathBuf)> {
        if let Some((last, directory, real)) = &self.last
            && last == path
        {
            return Ok((Rc::clone(directory), real.clone()));
        }
        let (directory, real) = self.open_or_create(path)?;
        let directory = Rc::new(directory);
        self.modes.entry(real.clone()).or_insert((0o755, None));
        self.last = Some((path.to_vec(), Rc::clone(&directory), real.clone()));
        Ok((directory, real))
    }

    fn open_or_create(&mut self, path: &[OsString]) -> Result<(OwnedFd, PathBuf)> {
        let whole: PathBuf = path.iter().collect();
        let directory = match inside(self.root.as_fd(), &whole) {
            Ok(directory) => directory,
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => {
                let (name, above) = path.split_last().ok_or_else(|| bad("the root of the image is missing"))?;
                let (parent, real) = self.directory(above)?;
                let is_missing = match kind_of(parent.as_fd(), name) {
                    None => true,
                    // A whiteout of this layer.
                    Some(FileType::CharacterDevice) => true,
                    Some(FileType::Symlink) => error == Errno::NOENT,
                    Some(_) => false,
                };
                if !is_missing {
                    return Err(bad(format!("{} is in a file of the image", shown(&whole))));
                }
                check_depth(&real.join(name))?;
                self.count(BLOCK)?;
                let wrong = |error: Errno| failed(&whole, error.into());
                match kind_of(parent.as_fd(), name) {
                    Some(FileType::CharacterDevice) => self.create_directory(&parent, name).map_err(wrong)?,
                    _ => mkdirat(&parent, name.as_os_str(), Mode::RWXU).map_err(wrong)?,
                }
                inside(self.root.as_fd(), &whole).map_err(wrong)?
            }
            Err(error) => return Err(failed(&whole, error.into())),
        };
        let real = self.real(&directory)?;
        Ok((directory, real))
    }

    /// Creates a directory, unless it exists, in place of what has its name.
    fn create_directory(&mut self, parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
        let before = kind_of(parent.as_fd(), name);
        if before == Some(FileType::Directory) {
            return Ok(());
        }
        if before.is_some() {
            self.last = None;
            rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
        }
        mkdirat(parent, name, Mode::RWXU)?;
        // A whiteout was there: the directory below stays hidden.
        if before == Some(FileType::CharacterDevice) {
            let directory = open_child(parent, name)?;
            rustix::fs::fsetxattr(&directory, OPAQUE_MARK, b"y", XattrFlags::empty())?;
        }
        Ok(())
    }

    /// Removes what has this name.
    fn replace(&mut self, parent: &OwnedFd, name: &OsStr) -> Result<()> {
        match kind_of(parent.as_fd(), name) {
            None => Ok(()),
            Some(_) => {
                self.last = None;
                remove(parent.as_fd(), name, 0)
            }
        }
    }

    /// Returns the real path of a directory, from its descriptor.
    fn real(&self, directory: &OwnedFd) -> Result<PathBuf> {
        let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))
            .map_err(io_error("inspect", &self.path))?;
        let below = path.strip_prefix(&self.path).map_err(|_| bad("a path leads out of the root file system"))?;
        Ok(below.to_owned())
    }

    fn link(&mut self, target: &[OsString], parent: &OwnedFd, name: &OsStr) -> Result<()> {
        let whole: PathBuf = target.iter().collect();
        let missing = || bad(format!("a link leads to {}, which is not there", shown(&whole)));
        let (last, above) = target.split_last().ok_or_else(missing)?;
        let from = inside(self.root.as_fd(), &above.iter().collect::<PathBuf>()).map_err(|_| missing())?;
        match kind_of(from.as_fd(), last) {
            Some(FileType::RegularFile | FileType::Symlink) => {}
            _ => return Err(missing()),
        }
        // A link from a file to itself needs no action.
        let (one, other) = (
            statat(&from, last.as_os_str(), AtFlags::SYMLINK_NOFOLLOW),
            statat(parent, name, AtFlags::SYMLINK_NOFOLLOW),
        );
        if let (Ok(one), Ok(other)) = (one, other)
            && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        {
            return Ok(());
        }
        self.replace(parent, name)?;
        linkat(&from, last.as_os_str(), parent, name, AtFlags::empty()).map_err(|error| failed(&whole, error.into()))
    }

    /// Sets modes and times of directories, and counts all entries.
    pub(crate) fn finish(mut self, more: Modes) -> Result<Needs> {
        for (path, mode) in more {
            self.modes.entry(path).or_insert(mode);
        }
        let mut needs = Needs::default();
        count(self.root.as_fd(), &mut needs, 0)?;
        // From the deepest. A path that is no longer a directory gets no mode.
        for (path, (mode, time)) in self.modes.iter().rev() {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            let wrong = |error: Errno| failed(path, error.into());
            match openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Ok(directory) => {
                    rustix::fs::fchmod(&directory, Mode::from_raw_mode(*mode)).map_err(wrong)?;
                    if let Some(time) = time {
                        rustix::fs::futimens(&directory, &times(*time)).map_err(wrong)?;
                    }
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(wrong(error)),
            }
        }
        Ok(needs)
    }
}

/// Copies exactly `size` bytes.
fn copy(from: &mut impl Read, into: &File, size: u64, piece: &mut [u8]) -> io::Result<()> {
    let mut left = size;
    while left > 0 {
        let length = from.read(piece)?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the layer is truncated"));
        }
        io::Write::write_all(&mut &*into, &piece[..length])?;
        left = left.saturating_sub(length as u64);
    }
    Ok(())
}

fn is_special(kind: EntryType) -> bool {
    kind.is_character_special() || kind.is_block_special() || kind.is_fifo()
}

/// The extended records of an entry.
struct Records {
    /// A sparse file, whose contents are not what they seem to be.
    sparse_map: bool,
    /// Extended attributes, such as capabilities.
    attributes: bool,
}

impl Records {
    fn read(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Self> {
        let mut found = Self { sparse_map: false, attributes: false };
        for record in entry.pax_extensions()?.into_iter().flatten() {
            let record = record?;
            let key = record.key_bytes();
            found.sparse_map |= key.starts_with(b"GNU.sparse.");
            found.attributes |= key.starts_with(b"SCHILY.xattr.") || key.starts_with(b"LIBARCHIVE.xattr.");
        }
        Ok(found)
    }
}

/// Returns the name that a whiteout hides, if it is one.
fn hidden(name: &OsStr) -> Option<&OsStr> {
    let bytes = name.as_bytes();
    let hidden = OsStr::from_bytes(bytes.strip_prefix(WHITEOUT)?);
    let is_name = !hidden.is_empty() && hidden != "." && hidden != ".." && !bytes.starts_with(NOTE);
    is_name.then_some(hidden)
}

fn open_child(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn set_opaque(directory: &OwnedFd, path: &Path) -> Result<()> {
    rustix::fs::fsetxattr(directory, OPAQUE_MARK, b"y", XattrFlags::empty()).map_err(|error| cannot_mark(path, error))
}

/// Converts an error of a mark, which not every file system has.
fn cannot_mark(path: &Path, error: Errno) -> LayerError {
    match error {
        Errno::OPNOTSUPP | Errno::PERM => bad(format!(
            "the file system of the image store cannot mark {} as removed ({error}): use one with devices and extended \
             attributes of users, such as ext4, XFS, Btrfs, or tmpfs of Linux 6.6",
            shown(path)
        )),
        _ => failed(path, error.into()),
    }
}

fn set_time(parent: &OwnedFd, name: &OsStr, time: Option<i64>) -> rustix::io::Result<()> {
    match time {
        Some(time) => rustix::fs::utimensat(parent, name, &times(time), AtFlags::SYMLINK_NOFOLLOW),
        None => Ok(()),
    }
}

fn times(seconds: i64) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// Checks the depth of a real path. Links allow paths that are deeper than their text is long.
fn check_depth(real: &Path) -> Result<()> {
    if real.components().count() > MAX_DEPTH { Err(too_deep()) } else { Ok(()) }
}

pub(crate) fn too_deep() -> LayerError {
    bad("the image's directories are too deep")
}

fn too_many() -> LayerError {
    bad(format!("the root file system has more than {MAX_ENTRIES} entries"))
}

fn bad_layer(error: io::Error) -> LayerError {
    bad(format!("the tar cannot be read: {}", error.to_string().escape_debug()))
}

/// Converts an error of the file system, or of reading a layer.
pub(crate) fn failed(path: &Path, error: io::Error) -> LayerError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => io_error("unpack", path)(error),
        _ => bad(format!("{} cannot be unpacked: {}", shown(path), error.to_string().escape_debug())),
    }
}

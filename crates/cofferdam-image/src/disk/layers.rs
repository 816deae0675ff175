//! Application of a container image's layers to a directory, one after the other.
//!
//! Layers are untrusted, and a link in one may redirect paths of the next. So every step uses descriptors, and paths
//! are resolved as if the directory were the root: nothing is created, changed or removed outside of it. A layer
//! removes files of lower layers with whiteouts, which are names that start with `.wh.`; these are never created as
//! files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, linkat, mkdirat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::EntryType;

use super::error::{ImageError, Result, io as io_error};
use super::ext4::{self, Needs};
use super::headers::Archive;
use super::root::{MAX_ENTRIES, add_mount_points};

const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of a whole directory: files of lower layers in it are removed.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Maximum depth of directories: removing the unpacked tree opens one descriptor for each level.
pub(crate) const MAX_DEPTH: usize = 256;

/// A directory to which layers are applied.
#[derive(Debug)]
pub(crate) struct Tree {
    path: PathBuf,
    root: OwnedFd,
    max: u64,
    needs: Needs,
    /// Modes of directories, by their real paths. Until the end, their owner has all permissions.
    modes: BTreeMap<PathBuf, u32>,
}

fn bad(what: impl Into<String>) -> ImageError {
    ImageError::InvalidSource { what: what.into() }
}

fn shown(path: &Path) -> String {
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
    if parts.len() > MAX_DEPTH { Err(bad("a path in the image is too deep")) } else { Ok(parts) }
}

/// Opens a directory, with `root` as the root of the path.
pub(crate) fn inside(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), resolve)
}

impl Tree {
    /// Opens an empty directory that only this process uses, for a root file system of at most `max` bytes.
    pub(crate) fn new(path: &Path, max: u64) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| io_error("open", path)(error.into()))?;
        let path = path.canonicalize().map_err(io_error("inspect", path))?;
        Ok(Self { path, root, max, needs: Needs::default(), modes: BTreeMap::new() })
    }

    /// Removes the files for which a layer has whiteouts. Must be called for each layer before [`Self::extract`].
    pub(crate) fn remove(&mut self, layer: impl Read) -> Result<()> {
        let mut archive = Archive::new(layer);
        let mut entries = 0;
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
            } else {
                let name = OsStr::from_bytes(&name.as_bytes()[WHITEOUT.len()..]);
                if !name.is_empty() && name != "." && name != ".." {
                    remove(parent.as_fd(), name, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Unpacks a layer's files into the directory, replacing existing ones.
    pub(crate) fn extract(&mut self, layer: impl Read) -> Result<()> {
        let mut archive = Archive::new(layer);
        for entry in archive.members().map_err(bad_layer)? {
            let mut entry = entry.map_err(bad_layer)?;
            let kind = entry.header().entry_type();
            if !matches!(
                kind,
                EntryType::Regular
                    | EntryType::Continuous
                    | EntryType::Directory
                    | EntryType::Symlink
                    | EntryType::Link
            ) {
                continue;
            }
            let path = parts(&entry.path().map_err(bad_layer)?)?;
            let mode = entry.header().mode().map_err(bad_layer)?;
            let Some((name, parents)) = path.split_last() else {
                self.modes.insert(PathBuf::new(), mode & 0o1777 | 0o500);
                continue;
            };
            if name.as_bytes().starts_with(WHITEOUT) {
                continue;
            }
            self.count(entry.size())?;
            let (parent, real) = self.directory(parents)?;
            let target = real.join(name);
            check_depth(&target)?;
            let wrong = |error: Errno| failed(&target, error.into());
            match kind {
                EntryType::Directory => {
                    if kind_of(parent.as_fd(), name) != Some(FileType::Directory) {
                        remove(parent.as_fd(), name, 0)?;
                        mkdirat(&parent, name, Mode::RWXU).map_err(wrong)?;
                    }
                    self.modes.insert(target, mode & 0o1777 | 0o500);
                }
                EntryType::Symlink => {
                    let target = entry.link_name().map_err(bad_layer)?.ok_or_else(|| bad("a link leads nowhere"))?;
                    remove(parent.as_fd(), name, 0)?;
                    symlinkat(&*target, &parent, name).map_err(wrong)?;
                }
                EntryType::Link => {
                    let target = entry.link_name().map_err(bad_layer)?.ok_or_else(|| bad("a link leads nowhere"))?;
                    self.link(&parts(&target)?, parent.as_fd(), name)?;
                }
                _ => {
                    remove(parent.as_fd(), name, 0)?;
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
                    let mut file = File::from(file);
                    io::copy(&mut entry, &mut file).map_err(|error| failed(&target, error))?;
                    // The user who builds the image must be able to read it.
                    let mode = Mode::from_raw_mode(mode & 0o777 | 0o400);
                    rustix::fs::fchmod(&file, mode).map_err(wrong)?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.needs.add(bytes);
        if self.needs.inodes > MAX_ENTRIES {
            return Err(too_many());
        }
        // A layer may replace files of lower layers: temporarily, both take space.
        ext4::check_size(self.needs, self.max.saturating_mul(2))
    }

    /// Opens the directory of these parts, creates it if it is missing, and returns its real path below the root.
    fn directory(&mut self, path: &[OsString]) -> Result<(OwnedFd, PathBuf)> {
        let whole: PathBuf = path.iter().collect();
        let directory = match inside(self.root.as_fd(), &whole) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => {
                let (name, above) = path.split_last().ok_or_else(|| bad("the root of the image is missing"))?;
                let (parent, real) = self.directory(above)?;
                check_depth(&real.join(name))?;
                self.count(4096)?;
                mkdirat(&parent, name.as_os_str(), Mode::RWXU).map_err(|error| failed(&whole, error.into()))?;
                inside(self.root.as_fd(), &whole).map_err(|error| failed(&whole, error.into()))?
            }
            Err(Errno::NOTDIR) => return Err(bad(format!("{} is in a file of the image", shown(&whole)))),
            Err(error) => return Err(failed(&whole, error.into())),
        };
        let real = self.real(&directory)?;
        self.modes.entry(real.clone()).or_insert(0o755);
        Ok((directory, real))
    }

    /// Returns the real path of a directory, from its descriptor.
    fn real(&self, directory: &OwnedFd) -> Result<PathBuf> {
        let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))
            .map_err(io_error("inspect", &self.path))?;
        let below = path.strip_prefix(&self.path).map_err(|_| bad("a path leads out of the root file system"))?;
        Ok(below.to_owned())
    }

    fn link(&mut self, target: &[OsString], parent: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
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
        remove(parent, name, 0)?;
        linkat(&from, last.as_os_str(), parent, name, AtFlags::empty()).map_err(|error| failed(&whole, error.into()))
    }

    /// Creates the directories that every VM needs, sets the modes of directories, and counts all entries.
    pub(crate) fn finish(mut self) -> Result<Needs> {
        let (mut made, mut needs) = (BTreeMap::new(), Needs::default());
        add_mount_points(&self.path, &mut needs, &mut made)?;
        let below = |path: PathBuf| path.strip_prefix(&self.path).map(Path::to_owned).unwrap_or_default();
        for (path, mode) in made {
            let path = below(path);
            self.modes.entry(path).or_insert(mode);
        }
        let mut needs = Needs::default();
        count(&self.path, &mut needs, 0)?;
        // From the deepest. A path that is no longer a directory gets no mode.
        for (path, mode) in self.modes.iter().rev() {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            match openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Ok(directory) => rustix::fs::fchmod(&directory, Mode::from_raw_mode(*mode))
                    .map_err(|error| failed(path, error.into()))?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(failed(path, error.into())),
            }
        }
        Ok(needs)
    }
}

fn count(directory: &Path, needs: &mut Needs, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(bad("the image's directories are too deep"));
    }
    for entry in fs::read_dir(directory).map_err(io_error("read", directory))? {
        let path = entry.map_err(io_error("read", directory))?.path();
        let found = fs::symlink_metadata(&path).map_err(io_error("inspect", &path))?;
        needs.add(found.size());
        if found.is_dir() {
            count(&path, needs, depth + 1)?;
        }
    }
    Ok(())
}

/// Checks the depth of a real path. Links allow paths that are deeper than their text is long.
fn check_depth(real: &Path) -> Result<()> {
    if real.components().count() > MAX_DEPTH { Err(bad("the image's directories are too deep")) } else { Ok(()) }
}

fn too_many() -> ImageError {
    bad(format!("the root file system has more than {MAX_ENTRIES} entries"))
}

fn bad_layer(error: io::Error) -> ImageError {
    bad(format!("cannot read a layer of the image: {}", error.to_string().escape_debug()))
}

/// Converts an error of the file system, or of reading a layer.
fn failed(path: &Path, error: io::Error) -> ImageError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => io_error("unpack", path)(error),
        _ => bad(format!("{} cannot be unpacked: {}", shown(path), error.to_string().escape_debug())),
    }
}

fn kind_of(parent: BorrowedFd<'_>, name: &OsStr) -> Option<FileType> {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|found| FileType::from_raw_mode(found.st_mode))
}

/// Removes the entry with this name, of any kind. A missing entry is no error.
fn remove(parent: BorrowedFd<'_>, name: &OsStr, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(bad("the image's directories are too deep"));
    }
    let wrong = |error: Errno| failed(Path::new(name), error.into());
    match kind_of(parent, name) {
        None => Ok(()),
        Some(FileType::Directory) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(wrong)?;
            clear(directory.as_fd(), depth + 1)?;
            unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(wrong)
        }
        Some(_) => unlinkat(parent, name, AtFlags::empty()).map_err(wrong),
    }
}

/// Removes everything in a directory.
fn clear(directory: BorrowedFd<'_>, depth: usize) -> Result<()> {
    let wrong = |error: Errno| failed(Path::new("a directory"), error.into());
    let names: Vec<OsString> = Dir::read_from(directory)
        .map_err(wrong)?
        .map(|entry| entry.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec())))
        .collect::<rustix::io::Result<_>>()
        .map_err(wrong)?;
    names.iter().filter(|name| *name != "." && *name != "..").try_for_each(|name| remove(directory, name, depth))
}

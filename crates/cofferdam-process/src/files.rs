//! The file API. Every step starts from a descriptor of the workspace and uses `openat2`, so that no link of the guest
//! leads outside, even if the guest changes links meanwhile.

use std::ffi::OsStr;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_contract::{DirEntry, EntryKind, Error, ErrorKind, FileReader, Result, SandboxPath, Script};
use cofferdam_linux::beneath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Uid};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The maximum of entries in a listing.
const MAX_ENTRIES: usize = 100_000;
/// The maximum of links that are followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The maximum of passes over a directory that is being removed while a guest fills it.
const MAX_PASSES: usize = 200_000;
pub(crate) const COPY_BUFFER: usize = 256 * 1024;
pub(crate) const OPEN_DIR: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// The workspace, and the owner of new files in it.
pub struct WorkspaceRoot {
    /// The workspace's directory.
    pub dir: OwnedFd,
    /// User and group of new files; `None` leaves them to the file system.
    pub owner: Option<(u32, u32)>,
}

/// Returns the error of a failed operation on a path.
pub fn failed(operation: &'static str, path: &SandboxPath, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let (kind, message) = match errno {
        Some(Errno::XDEV | Errno::LOOP) => {
            (ErrorKind::PathEscape, "the path leads outside the workspace or in a circle")
        }
        Some(Errno::NOENT) => (ErrorKind::NotFound, "there is no such file or directory"),
        Some(Errno::NOTDIR) => (ErrorKind::Conflict, "a part of the path is not a directory"),
        Some(Errno::ISDIR) => (ErrorKind::Conflict, "it is a directory"),
        Some(Errno::NOTEMPTY | Errno::EXIST | Errno::AGAIN | Errno::BUSY) => {
            (ErrorKind::Conflict, "it is being changed at the same time")
        }
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => (ErrorKind::ResourceExhausted, "the disk limit is reached"),
        Some(Errno::ACCESS | Errno::PERM) => (ErrorKind::Denied, "permission denied"),
        Some(Errno::ROFS) => (ErrorKind::Denied, "it is read-only"),
        Some(Errno::NAMETOOLONG) => (ErrorKind::InvalidInput, "a name is too long"),
        _ => (ErrorKind::Io, "the file system returned an error"),
    };
    Error::new(kind, operation, message).with_context("path", path.to_string()).with_source(error)
}

pub(crate) fn not_plain(operation: &'static str, path: &SandboxPath, kind: FileType) -> Error {
    let what = match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a fifo",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "not a plain file",
    };
    Error::new(ErrorKind::Conflict, operation, format!("it is {what}, not a plain file"))
        .with_context("path", path.to_string())
}

/// Runs work that may wait for a disk on a thread for blocking tasks.
pub async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, operation, "the file task ended early")))
}

/// Opens a plain file for reading from the byte `offset` on.
pub async fn read(root: WorkspaceRoot, path: &SandboxPath, offset: u64) -> Result<FileReader> {
    let path = path.clone();
    let file = blocking("read_file", move || match beneath::open_plain(root.dir.as_fd(), Path::new(path.as_str())) {
        Ok(Ok(file)) => {
            let mut file = std::fs::File::from(file);
            if offset > 0 {
                // File systems do not seek beyond their maximum file size.
                let end = file.metadata().map_err(|error| failed("read_file", &path, error))?.len();
                file.seek(SeekFrom::Start(offset.min(end))).map_err(|error| failed("read_file", &path, error))?;
            }
            Ok(file)
        }
        Ok(Err(kind)) => Err(not_plain("read_file", &path, kind)),
        Err(error) => Err(failed("read_file", &path, error)),
    })
    .await?;
    Ok(Box::new(tokio::fs::File::from_std(file)))
}

/// Creates or replaces a plain file: writes a new file beside it and renames it.
pub async fn write(root: WorkspaceRoot, path: &SandboxPath, mut contents: FileReader) -> Result<u64> {
    if path.is_workspace() {
        return Err(not_plain("write_file", path, FileType::Directory));
    }
    let wanted = path.clone();
    let (draft, file) = blocking("write_file", move || Draft::new(&root, &wanted)).await?;
    let mut file = tokio::fs::File::from_std(file);
    let mut written = 0;
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        let count = contents.read(&mut buffer).await.map_err(|error| {
            Error::new(ErrorKind::Io, "write_file", "cannot read the new contents").with_source(error)
        })?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).await.map_err(|error| failed("write_file", path, error))?;
        written += count as u64;
    }
    file.flush().await.map_err(|error| failed("write_file", path, error))?;
    drop(file);
    let wanted = path.clone();
    blocking("write_file", move || draft.keep().map_err(|error| failed("write_file", &wanted, error))).await?;
    Ok(written)
}

/// A file that is being written. It is removed unless it is kept.
pub(crate) struct Draft {
    dir: OwnedFd,
    draft: String,
    name: PathBuf,
    is_persisted: bool,
}

static DRAFTS: AtomicU64 = AtomicU64::new(0);

impl Draft {
    fn new(root: &WorkspaceRoot, path: &SandboxPath) -> Result<(Self, std::fs::File)> {
        let fail = |error: io::Error| failed("write_file", path, error);
        make_parents(root, path).map_err(fail)?;
        let (dir, name) = destination(root, path).map_err(fail)?;
        match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if !FileType::from_raw_mode(stat.st_mode).is_file() => {
                return Err(not_plain("write_file", path, FileType::from_raw_mode(stat.st_mode)));
            }
            _ => {}
        }
        Self::create(dir, name, root.owner).map_err(fail)
    }

    /// Begins the file `name` in an opened directory.
    pub(crate) fn create(dir: OwnedFd, name: PathBuf, owner: Option<(u32, u32)>) -> io::Result<(Self, std::fs::File)> {
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = format!(".cofferdam-draft-{}-{number}", std::process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&dir, draft.as_str(), flags, Mode::from_raw_mode(0o644))?;
        let draft = Self { dir, draft, name, is_persisted: false };
        give(&file, owner)?;
        Ok((draft, std::fs::File::from(file)))
    }

    pub(crate) fn keep(mut self) -> io::Result<()> {
        rustix::fs::renameat(&self.dir, self.draft.as_str(), &self.dir, &self.name)?;
        self.is_persisted = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_persisted {
            let _ = rustix::fs::unlinkat(&self.dir, self.draft.as_str(), AtFlags::empty());
        }
    }
}

pub(crate) fn give(file: &OwnedFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    if let Some((uid, gid)) = owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))?;
    }
    Ok(())
}

/// Creates the missing parent directories of a path.
fn make_parents(root: &WorkspaceRoot, path: &SandboxPath) -> io::Result<()> {
    let Some(parent) = Path::new(path.as_str()).parent() else { return Ok(()) };
    let mut above = PathBuf::new();
    for part in parent.components() {
        let next = above.join(part);
        match beneath::open(root.dir.as_fd(), &next, OPEN_DIR, Mode::empty()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dir = beneath::open(root.dir.as_fd(), &above, OPEN_DIR, Mode::empty())?;
                match rustix::fs::mkdirat(&dir, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                    Ok(()) => {
                        let flags = OPEN_DIR | OFlags::NOFOLLOW;
                        give(&rustix::fs::openat(&dir, part.as_os_str(), flags, Mode::empty())?, root.owner)?;
                    }
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
        above = next;
    }
    Ok(())
}

/// Returns the directory and name that a path refers to, after links in its last part are followed, each step inside
/// the workspace.
fn destination(root: &WorkspaceRoot, path: &SandboxPath) -> io::Result<(OwnedFd, PathBuf)> {
    let mut current = PathBuf::from(path.as_str());
    for _ in 0..MAX_LINKS {
        let parent = current.parent().map(Path::to_owned).unwrap_or_default();
        let name = current.file_name().map(PathBuf::from).ok_or(Errno::ISDIR)?;
        let dir = beneath::open(root.dir.as_fd(), &parent, OPEN_DIR, Mode::empty())?;
        match rustix::fs::readlinkat(&dir, &name, Vec::new()) {
            Ok(target) => {
                let target = Path::new(OsStr::from_bytes(target.as_bytes())).to_owned();
                if target.is_absolute() {
                    return Err(Errno::XDEV.into());
                }
                current = parent.join(target);
            }
            Err(Errno::INVAL | Errno::NOENT) => return Ok((dir, name)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::LOOP.into())
}

/// Calls `each` with every entry of a directory until it returns false.
fn for_each(dir: &OwnedFd, mut each: impl FnMut(&std::ffi::CStr) -> io::Result<bool>) -> io::Result<()> {
    // Open it again, so that the position in the directory is not shared.
    let dir = rustix::fs::openat(dir, ".", OPEN_DIR, Mode::empty())?;
    let mut buffer = Vec::with_capacity(64 * 1024);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." && !each(name)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Lists a directory, sorted by name.
pub async fn list(root: WorkspaceRoot, path: &SandboxPath) -> Result<Vec<DirEntry>> {
    let path = path.clone();
    blocking("list_dir", move || {
        let fail = |error| failed("list_dir", &path, error);
        let dir = beneath::open(root.dir.as_fd(), Path::new(path.as_str()), OPEN_DIR, Mode::empty()).map_err(fail)?;
        let mut found = Vec::new();
        for_each(&dir, |name| {
            match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => found.push(entry(&dir, name, &stat)),
                // The entry was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(found.len() <= MAX_ENTRIES)
        })
        .map_err(fail)?;
        if found.len() > MAX_ENTRIES {
            return Err(Error::new(
                ErrorKind::ResourceExhausted,
                "list_dir",
                format!("the directory has more than {MAX_ENTRIES} entries"),
            )
            .with_context("path", path.to_string()));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    })
    .await
}

fn entry(dir: &OwnedFd, name: &std::ffi::CStr, stat: &rustix::fs::Stat) -> DirEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let size = if kind == EntryKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    // A link that was replaced meanwhile has no target.
    let target = || rustix::fs::readlinkat(dir, name, Vec::new()).unwrap_or_default();
    let target = (kind == EntryKind::Symlink).then(|| target().to_string_lossy().into_owned());
    let name = name.to_string_lossy().into_owned();
    DirEntry { name, kind, size, mode: stat.st_mode & 0o7777, modified: stat.st_mtime, target }
}

/// Renames a file, a link, or a directory.
pub async fn rename(root: WorkspaceRoot, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
    if from.is_workspace() || to.is_workspace() {
        return Err(Error::invalid("rename", "the workspace itself cannot be renamed or replaced"));
    }
    let (from, to) = (from.clone(), to.clone());
    blocking("rename", move || {
        let above = |path: &SandboxPath| {
            let parent = Path::new(path.as_str()).parent().unwrap_or(Path::new(""));
            beneath::open(root.dir.as_fd(), parent, OPEN_DIR, Mode::empty())
                .map_err(|error| failed("rename", path, error))
        };
        let name = |path: &SandboxPath| Path::new(path.as_str()).file_name().unwrap_or_default().to_owned();
        let (old, new) = (above(&from)?, above(&to)?);
        rustix::fs::renameat(&old, name(&from), &new, name(&to)).map_err(|error| {
            let refused = |kind, message| Error::new(kind, "rename", message).with_context("path", to.to_string());
            match error {
                Errno::XDEV => refused(
                    ErrorKind::Conflict,
                    "the target is in another file system, or a directory of the copied workspace is to be renamed",
                )
                .with_remedy("copy it, and remove the original"),
                Errno::ISDIR => refused(ErrorKind::Conflict, "a file cannot replace a directory"),
                Errno::INVAL => refused(ErrorKind::InvalidInput, "a directory cannot be moved into itself"),
                Errno::NOTEMPTY | Errno::EXIST => {
                    refused(ErrorKind::Conflict, "the target is a directory with entries")
                }
                Errno::NOTDIR => refused(ErrorKind::Conflict, "a directory cannot replace a file"),
                error => failed("rename", &from, error),
            }
        })
    })
    .await
}

/// Removes a file, a link, or a directory with its contents.
pub async fn remove(root: WorkspaceRoot, path: &SandboxPath) -> Result<()> {
    if path.is_workspace() {
        return Err(Error::invalid("remove", "the workspace itself cannot be removed"));
    }
    let path = path.clone();
    blocking("remove", move || {
        let target = Path::new(path.as_str());
        let parent = target.parent().unwrap_or(Path::new(""));
        let fail = |error: io::Error| failed("remove", &path, error);
        let dir = beneath::open(root.dir.as_fd(), parent, OPEN_DIR, Mode::empty()).map_err(fail)?;
        let name = target.file_name().unwrap_or_default();
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => remove_tree(&dir, name).map_err(fail),
            other => other.map_err(|error| fail(error.into())),
        }
    })
    .await
}

/// Removes a directory with its contents, with two descriptors at any depth: nested directories are moved up until all
/// are flat.
fn remove_tree(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let flags = OPEN_DIR | OFlags::NOFOLLOW;
    let top = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mut moved = 0u64;
    for _ in 0..MAX_PASSES {
        let mut left = false;
        for_each(&top, |entry| {
            left = true;
            match rustix::fs::unlinkat(&top, entry, AtFlags::empty()) {
                Err(Errno::ISDIR) => flatten(&top, entry, &mut moved)?,
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(true)
        })?;
        if !left {
            match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => {}
                other => return Ok(other?),
            }
        }
    }
    Err(Errno::AGAIN.into())
}

fn flatten(top: &OwnedFd, name: &std::ffi::CStr, moved: &mut u64) -> io::Result<()> {
    let dir = match rustix::fs::openat(top, name, OPEN_DIR | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        other => other?,
    };
    for_each(&dir, |entry| {
        match rustix::fs::unlinkat(&dir, entry, AtFlags::empty()) {
            Err(Errno::ISDIR) => {
                *moved += 1;
                let aside = format!(".cofferdam-removed-{}-{moved}", std::process::id());
                match rustix::fs::renameat(&dir, entry, top, aside.as_str()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    })?;
    match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
        // The next pass removes new entries.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes a script to a directory of its own, which guests can read and not change. Returns its path inside.
pub fn put_script(code: &OwnedFd, exec: u64, script: &Script) -> Result<String> {
    let fail = |error: io::Error| {
        let full = error.raw_os_error() == Some(libc::ENOSPC);
        let kind = if full { ErrorKind::ResourceExhausted } else { ErrorKind::Io };
        Error::new(kind, "start", "cannot store the script in the sandbox").with_source(error)
    };
    let put = || -> io::Result<()> {
        let directory = exec.to_string();
        rustix::fs::mkdirat(code, directory.as_str(), Mode::from_raw_mode(0o755))?;
        put_file(code, &format!("{directory}/{}", script.name), &script.contents)?;
        rustix::fs::chmodat(code, directory.as_str(), Mode::from_raw_mode(0o555), AtFlags::empty())?;
        Ok(())
    };
    put().map_err(|error| {
        // The part that was stored before the disk was full uses the guest's disk limit.
        remove_script(code, exec);
        fail(error)
    })?;
    Ok(format!("/code/{exec}/{}", script.name))
}

/// Writes a new file to the directory of scripts, which guests can read and not change, or an empty one that it has.
pub fn put_file(code: &OwnedFd, path: &str, contents: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(code, path, flags, Mode::from_raw_mode(0o644))?;
    // The caller's umask must not hide it from the guest.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444))?;
    io::Write::write_all(&mut std::fs::File::from(file), contents)
}

/// Removes the script that [`put_script`] wrote.
pub fn remove_script(code: &OwnedFd, exec: u64) {
    let directory = exec.to_string();
    let _ = rustix::fs::chmodat(code, directory.as_str(), Mode::from_raw_mode(0o755), AtFlags::empty());
    let _ = remove_tree(code, OsStr::new(&directory));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(path: &Path) -> WorkspaceRoot {
        WorkspaceRoot { dir: OwnedFd::from(std::fs::File::open(path).unwrap()), owner: None }
    }

    #[tokio::test]
    async fn a_tree_deeper_than_any_path_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = OwnedFd::from(std::fs::File::open(temp.path()).unwrap());
        for _ in 0..3000 {
            rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
            dir = rustix::fs::openat(&dir, "d", OPEN_DIR, Mode::empty()).unwrap();
        }
        remove(root(temp.path()), &SandboxPath::new("d").unwrap()).await.unwrap();
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn writing_through_links_stays_inside() {
        let temp = tempfile::tempdir().unwrap();
        let inside = temp.path().join("w");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(temp.path().join("secret"), "old").unwrap();
        std::os::unix::fs::symlink("../secret", inside.join("out")).unwrap();
        std::os::unix::fs::symlink("../target", inside.join("sub/in")).unwrap();
        std::os::unix::fs::symlink("loop", inside.join("loop")).unwrap();
        let put = |name: &'static str| {
            let contents: FileReader = Box::new(&b"new"[..]);
            let path = SandboxPath::new(name).unwrap();
            let root = root(&inside);
            async move { write(root, &path, contents).await }
        };
        assert_eq!(put("out").await.unwrap_err().kind(), ErrorKind::PathEscape);
        assert_eq!(put("loop").await.unwrap_err().kind(), ErrorKind::PathEscape);
        assert_eq!(put("sub").await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(put("sub/in").await.unwrap(), 3);
        assert_eq!(put("a/b/c").await.unwrap(), 3);
        assert_eq!(std::fs::read_to_string(temp.path().join("secret")).unwrap(), "old");
        assert_eq!(std::fs::read_to_string(inside.join("target")).unwrap(), "new");
        let names: Vec<_> = list(root(&inside), &SandboxPath::default()).await.unwrap();
        assert_eq!(names.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["a", "loop", "out", "sub", "target"]);
    }
}

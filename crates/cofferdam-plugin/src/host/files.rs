//! The files of a plugin: its data directory, and directories of the host that its manifest names.
//!
//! Each path is resolved from the descriptor of an allowed directory by `openat2`, beneath it. So no link leads out,
//! even if another program changes links meanwhile.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contract::{Error, Result};
use cofferdam_linux::beneath;
use cofferdam_linux::named::{self, Directory};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::permission::{is_below, shown};
use crate::Manifest;
use crate::services::{Content, content};
use crate::wire::{CallError, ErrorKind};

/// The maximum number of bytes of one read. A frame holds it as base64.
const MAX_READ: u64 = 5 << 20;
/// The maximum number of entries of a listing.
const MAX_ENTRIES: usize = 10_000;
/// The bytes that a file or directory counts besides its contents.
const ENTRY_BYTES: u64 = 4096;
/// The default of the maximum of bytes in the data directory.
const DEFAULT_DISK: u64 = 256 << 20;
/// The maximum number of entries that are counted in a data directory when the plugin is loaded.
const MAX_COUNTED: usize = 1_000_000;
const OPEN_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    path: String,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFile {
    path: String,
    content: Content,
    #[serde(default)]
    append: bool,
}

/// An allowed directory or file of the host, as it was when the plugin was loaded.
struct Root {
    /// The entry of the allowlist.
    entry: String,
    opened: io::Result<OwnedFd>,
}

/// The files of a plugin.
pub struct Files {
    data: OwnedFd,
    roots: Vec<Root>,
    read: Vec<String>,
    write: Vec<String>,
    limit: u64,
    used: Mutex<u64>,
}

impl Files {
    /// Opens the plugin's data directory and the directories of its allowlists. No entry may reach a protected directory.
    ///
    /// # Errors
    /// - `Denied` for an entry that reaches a protected directory.
    pub fn open(manifest: &Manifest, data: &Path, protected: &[&Path]) -> Result<Arc<Self>> {
        let access = &manifest.sandbox.fs_access;
        let protected: Vec<PathBuf> =
            protected.iter().map(|path| path.canonicalize().unwrap_or_else(|_| (*path).to_owned())).collect();
        let mut roots = Vec::new();
        for entry in access.read.iter().chain(&access.write).filter(|entry| entry.starts_with('/')) {
            let opened = named::open(Path::new(entry));
            // The path of what was opened, after links of the system.
            let real = opened
                .as_ref()
                .ok()
                .and_then(|fd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok());
            let real = real.unwrap_or_else(|| PathBuf::from(entry));
            if protected.iter().any(|path| path.starts_with(&real) || real.starts_with(path)) {
                return Err(Error::new(
                    cofferdam_contract::ErrorKind::Denied,
                    "load plugin",
                    format!("sandbox.fsAccess '{}' reaches a directory of the plugin host", shown(entry)),
                )
                .with_remedy("name a directory without it"));
            }
            roots.push(Root { entry: entry.trim_end_matches('/').to_owned(), opened });
        }
        let failed = |error: io::Error| {
            Error::new(cofferdam_contract::ErrorKind::Io, "load plugin", "cannot open the plugin's data directory")
                .with_source(error)
        };
        let data = OwnedFd::from(Directory::open(data).map_err(failed)?);
        let used = usage(data.as_fd()).map_err(failed)?;
        Ok(Arc::new(Self {
            data,
            roots,
            read: access.read.clone(),
            write: access.write.clone(),
            limit: manifest.sandbox.limits.disk.map_or(DEFAULT_DISK, |limit| limit.as_bytes()),
            used: Mutex::new(used),
        }))
    }

    /// Answers a request, which the permissions allow. The permit is held as long as the work runs, even if the request is
    /// cancelled.
    pub async fn call(
        self: Arc<Self>,
        method: &str,
        params: Value,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Value, CallError> {
        let method = method.to_owned();
        let work = move || match (permit, method.as_str()).1 {
            "fs.read" => self.read(parse(params)?),
            "fs.stat" => self.stat(&parse::<At>(params)?.path),
            "fs.list" => self.list(&parse::<At>(params)?.path),
            "fs.write" => self.write(parse(params)?),
            "fs.mkdir" => self.make_directory(&parse::<At>(params)?.path),
            "fs.remove" => self.remove_one(&parse::<At>(params)?.path),
            _ => Err(CallError::new(ErrorKind::MethodNotFound, "the host has no such method")),
        };
        let failed = |_| CallError::new(ErrorKind::Internal, "the file task ended early");
        tokio::task::spawn_blocking(work).await.map_err(failed)?
    }

    /// Removes files of the data directory. Those that are gone already are fine.
    pub async fn remove(self: Arc<Self>, paths: Vec<String>) {
        for path in paths.into_iter().filter(|path| !path.starts_with('/')) {
            let _ = Arc::clone(&self).call("fs.remove", json!({"path": path}), None).await;
        }
    }

    /// Removes files in the host's directory for temporary files, which a plugin without isolation reported.
    pub async fn remove_temporary(&self, paths: &[String]) {
        let names: Vec<String> = paths
            .iter()
            .filter_map(|path| path.strip_prefix("/tmp/"))
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect();
        let remove = move || {
            let Ok(directory) = Directory::open(Path::new("/tmp")) else { return };
            let directory = OwnedFd::from(directory);
            for name in names {
                let _ = rustix::fs::unlinkat(&directory, &name, AtFlags::empty());
            }
        };
        let _ = tokio::task::spawn_blocking(remove).await;
    }

    /// Returns the directory or file of the allowlist above a path, and the rest of the path.
    fn resolve<'p>(&self, path: &'p str, list: &[String], create: bool) -> Result<(OwnedFd, &'p str), CallError> {
        let entry = list.iter().filter(|entry| is_below(path, entry)).max_by_key(|entry| entry.len());
        let entry = entry.ok_or_else(|| CallError::new(ErrorKind::PermissionDenied, "the path is not allowed"))?;
        let entry = entry.trim_end_matches('/').trim_start_matches("./");
        let rest = if entry == "." { path } else { path[entry.len()..].trim_start_matches('/') };
        if !entry.starts_with('/') && !entry.is_empty() {
            if create && entry != "." && !rest.is_empty() {
                make_directories(self.data.as_fd(), entry).map_err(|error| failed(path, error))?;
            }
            let opened = beneath::open(self.data.as_fd(), Path::new(entry), OFlags::PATH, Mode::empty());
            return opened.map(|opened| (opened, rest)).map_err(|error| failed(path, error));
        }
        let root = self.roots.iter().find(|root| root.entry == entry);
        let opened = root.map(|root| root.opened.as_ref());
        match opened {
            Some(Ok(fd)) => fd.try_clone().map(|fd| (fd, rest)).map_err(|error| failed(path, error)),
            Some(Err(error)) => Err(failed(path, io::Error::from(error.kind()))),
            None => Err(CallError::not_found("there is no such file or directory")),
        }
    }

    /// Opens the object at a path without reading it.
    fn find(&self, path: &str, list: &[String]) -> Result<OwnedFd, CallError> {
        let (root, rest) = self.resolve(path, list, false)?;
        if rest.is_empty() {
            return Ok(root);
        }
        beneath::open(root.as_fd(), Path::new(rest), OFlags::PATH, Mode::empty()).map_err(|error| failed(path, error))
    }

    fn read(&self, params: ReadFile) -> Result<Value, CallError> {
        let found = self.find(&params.path, &self.read)?;
        let mut file = open_plain(&found, OFlags::RDONLY, &params.path)?;
        let size = file.metadata().map_err(|error| failed(&params.path, error))?.len();
        let length = params.length.unwrap_or(MAX_READ + 1);
        if params.length.is_none() && size.saturating_sub(params.offset) > MAX_READ {
            let message = format!("the file has {size} bytes; read at most {MAX_READ} with offset and length");
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        file.seek(SeekFrom::Start(params.offset.min(size))).map_err(|error| failed(&params.path, error))?;
        let mut bytes = Vec::new();
        let read = file.take(length.min(MAX_READ)).read_to_end(&mut bytes);
        read.map_err(|error| failed(&params.path, error))?;
        Ok(json!({"content": content(bytes), "size": size}))
    }

    fn stat(&self, path: &str) -> Result<Value, CallError> {
        let found = self.find(path, &self.read)?;
        let stat = rustix::fs::fstat(&found).map_err(|error| failed(path, error))?;
        let micros = stat.st_mtime.saturating_mul(1_000_000).saturating_add(stat.st_mtime_nsec as i64 / 1000);
        Ok(json!({
            "kind": kind(FileType::from_raw_mode(stat.st_mode)),
            "size": stat.st_size,
            "modified": cofferdam_audit::Timestamp::from_micros(micros),
        }))
    }

    fn list(&self, path: &str) -> Result<Value, CallError> {
        let found = self.find(path, &self.read)?;
        let opened = rustix::fs::openat(&found, ".", OPEN_DIRECTORY, Mode::empty());
        let directory = opened.map_err(|error| failed(path, error))?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory).map_err(|error| failed(path, error))? {
            let entry = entry.map_err(|error| failed(path, error))?;
            // A name that is not UTF-8 cannot be named in a request either.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            if entries.len() >= MAX_ENTRIES {
                let message = format!("the directory has more than {MAX_ENTRIES} entries");
                return Err(CallError::new(ErrorKind::Limit, message));
            }
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let (kind, size) =
                stat.map_or(("other", 0), |stat| (kind(FileType::from_raw_mode(stat.st_mode)), stat.st_size));
            entries.push((name.to_owned(), kind, size));
        }
        entries.sort();
        let shown = |(name, kind, size): &(String, &str, i64)| json!({"name": name, "kind": kind, "size": size});
        Ok(json!({"entries": entries.iter().map(shown).collect::<Vec<_>>()}))
    }

    fn write(&self, params: WriteFile) -> Result<Value, CallError> {
        let WriteFile { path, content, append } = params;
        let bytes = content.into_bytes()?;
        let (root, rest) = self.resolve(&path, &self.write, true)?;
        // One change at a time, so that the count stays right.
        let mut used = self.used.lock();
        let found = match rest {
            "" => Some(root.try_clone().map_err(|error| failed(&path, error))?),
            _ => match beneath::open(root.as_fd(), Path::new(rest), OFlags::PATH, Mode::empty()) {
                Ok(found) => Some(found),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(failed(&path, error)),
            },
        };
        let length = bytes.len() as u64;
        let Some(found) = found else {
            let parts = rest.split('/').count() as u64;
            self.check_room(&path, *used, parts * ENTRY_BYTES + length)?;
            let parent = rest.rsplit_once('/').map_or("", |(parent, _)| parent);
            let directories = make_directories(root.as_fd(), parent).map_err(|error| failed(&path, error))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let created = beneath::open(root.as_fd(), Path::new(rest), flags, Mode::from_raw_mode(0o644));
            let mut file = std::fs::File::from(created.map_err(|error| failed(&path, error))?);
            self.add(&path, &mut used, (directories + 1) * ENTRY_BYTES + length);
            file.write_all(&bytes).map_err(|error| failed(&path, error))?;
            return Ok(json!({"size": length}));
        };
        let mut file = open_plain(&found, OFlags::WRONLY, &path)?;
        let before = file.metadata().map_err(|error| failed(&path, error))?.len();
        let offset = if append { before } else { 0 };
        let after = offset + length;
        self.check_room(&path, *used, after.saturating_sub(before))?;
        self.add(&path, &mut used, after);
        if !path.starts_with('/') {
            *used = used.saturating_sub(before);
        }
        let written = (|| {
            file.set_len(offset)?;
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(&bytes)
        })();
        written.map_err(|error| failed(&path, error))?;
        Ok(json!({"size": after}))
    }

    /// Checks that the data directory has room for more bytes. Other directories have no limit here.
    fn check_room(&self, path: &str, used: u64, more: u64) -> Result<(), CallError> {
        if !path.starts_with('/') && more > 0 && used.saturating_add(more) > self.limit {
            let message = format!("the plugin's data directory may have at most {} bytes", self.limit);
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        Ok(())
    }

    fn add(&self, path: &str, used: &mut u64, bytes: u64) {
        if !path.starts_with('/') {
            *used = used.saturating_add(bytes);
        }
    }

    fn make_directory(&self, path: &str) -> Result<Value, CallError> {
        let (root, rest) = self.resolve(path, &self.write, true)?;
        let mut used = self.used.lock();
        self.check_room(path, *used, rest.split('/').count() as u64 * ENTRY_BYTES)?;
        let created = make_directories(root.as_fd(), rest).map_err(|error| failed(path, error))?;
        self.add(path, &mut used, created * ENTRY_BYTES);
        Ok(Value::Null)
    }

    fn remove_one(&self, path: &str) -> Result<Value, CallError> {
        let (root, rest) = self.resolve(path, &self.write, false)?;
        if rest.is_empty() {
            return Err(CallError::new(ErrorKind::Conflict, "an entry of the allowlist itself cannot be removed"));
        }
        let mut used = self.used.lock();
        let (parent, name) = rest.rsplit_once('/').unwrap_or((".", rest));
        let parent = beneath::open(root.as_fd(), Path::new(parent), OPEN_DIRECTORY, Mode::empty());
        let parent = parent.map_err(|error| failed(path, error))?;
        let stat = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed(path, error))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&parent, name, flags).map_err(|error| failed(path, error))?;
        if !path.starts_with('/') {
            let freed = ENTRY_BYTES + if is_directory { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) };
            *used = used.saturating_sub(freed);
        }
        Ok(Value::Null)
    }
}

/// Reads parameters.
pub fn parse<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, CallError> {
    serde_json::from_value(params).map_err(|error| CallError::invalid(shown(&error.to_string())))
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "other",
    }
}

/// Opens a file that was found. Refuses everything that is not a plain file, before it is opened.
fn open_plain(found: &OwnedFd, flags: OFlags, path: &str) -> Result<std::fs::File, CallError> {
    let stat = rustix::fs::fstat(found).map_err(|error| failed(path, error))?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(CallError::new(ErrorKind::Conflict, "it is not a plain file"));
    }
    beneath::reopen(found, flags).map(std::fs::File::from).map_err(|error| failed(path, error))
}

/// Creates a directory and its parents beneath `root`. Returns the number of new ones.
fn make_directories(root: BorrowedFd<'_>, path: &str) -> io::Result<u64> {
    let mut created = 0;
    let mut below = rustix::fs::openat(root, ".", OPEN_DIRECTORY, Mode::empty())?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match rustix::fs::mkdirat(&below, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => created += 1,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // A link that leads elsewhere is not followed.
        below = rustix::fs::openat(&below, part, OPEN_DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(created)
}

/// Returns the bytes in a directory.
fn usage(root: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut total, mut count) = (0u64, 0);
    let mut pending = vec![rustix::fs::openat(root, ".", OPEN_DIRECTORY, Mode::empty())?];
    while let Some(directory) = pending.pop() {
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            count += 1;
            if matches!(name.to_bytes(), b"." | b"..") || count > MAX_COUNTED {
                continue;
            }
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            total += ENTRY_BYTES;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                pending.push(rustix::fs::openat(&directory, name, OPEN_DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?);
            } else {
                total += u64::try_from(stat.st_size).unwrap_or(0);
            }
        }
    }
    Ok(total)
}

fn failed(path: &str, error: impl Into<io::Error>) -> CallError {
    let error = error.into();
    let (kind, message) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::XDEV | Errno::LOOP) => (ErrorKind::PermissionDenied, "the path leads out of the allowed directory"),
        Some(Errno::NOENT) => (ErrorKind::NotFound, "there is no such file or directory"),
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {
            (ErrorKind::Conflict, "another kind of file is there, or the directory is not empty")
        }
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => (ErrorKind::Limit, "the disk is full"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            (ErrorKind::PermissionDenied, "the host may not do that there")
        }
        _ if error.kind() == io::ErrorKind::NotFound => (ErrorKind::NotFound, "there is no such file or directory"),
        _ => (ErrorKind::Internal, "the file system returned an error"),
    };
    CallError::new(kind, format!("{message}: '{}'", shown(path))).with("target", shown(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(read: &[&str], write: &[&str]) -> (tempfile::TempDir, Arc<Files>) {
        let directory = tempfile::tempdir().unwrap();
        let (data, state) = (directory.path().join("data"), directory.path().join("state"));
        std::fs::create_dir_all(&data).unwrap();
        std::fs::create_dir_all(&state).unwrap();
        let absolute = |list: &[&str]| -> Vec<String> {
            list.iter().map(|entry| entry.replace("TOP", directory.path().to_str().unwrap())).collect()
        };
        let manifest: Manifest = serde_json::from_value(json!({
            "manifest": 1, "name": "p", "version": "1.0.0", "runtime": "python", "entry": "m:f",
            "sandbox": {"fsAccess": {"read": absolute(read), "write": absolute(write)}, "limits": {"disk": "64K"}},
        }))
        .unwrap();
        let files = Files::open(&manifest, &data, &[&state]).unwrap();
        (directory, files)
    }

    async fn call(files: &Arc<Files>, method: &str, params: Value) -> Result<Value, CallError> {
        Arc::clone(files).call(method, params, None).await
    }

    #[tokio::test]
    async fn files_are_written_read_listed_and_removed() {
        let (_directory, files) = files(&["out"], &["out"]);
        let write = json!({"path": "out/a/b.txt", "content": {"text": "héllo"}});
        assert_eq!(call(&files, "fs.write", write).await.unwrap(), json!({"size": 6}));
        let more = json!({"path": "out/a/b.txt", "content": {"base64": "/w=="}, "append": true});
        assert_eq!(call(&files, "fs.write", more).await.unwrap(), json!({"size": 7}));
        let read = call(&files, "fs.read", json!({"path": "out/a/b.txt", "offset": 1, "length": 2})).await.unwrap();
        assert_eq!(read, json!({"content": {"text": "é"}, "size": 7}));
        let listed = call(&files, "fs.list", json!({"path": "out"})).await.unwrap();
        assert_eq!(listed["entries"][0]["kind"], "directory");
        assert_eq!(call(&files, "fs.stat", json!({"path": "out/a/b.txt"})).await.unwrap()["size"], 7);
        call(&files, "fs.remove", json!({"path": "out/a/b.txt"})).await.unwrap();
        let gone = call(&files, "fs.read", json!({"path": "out/a/b.txt"})).await.unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotFound);
    }

    /// Promise (Plugins): No symbolic link leads a plugin's file request out of an allowed directory.
    #[tokio::test]
    async fn links_do_not_lead_out() {
        let (directory, files) = files(&["out", "TOP/shared"], &["out", "TOP/shared"]);
        let secret = directory.path().join("secret");
        std::fs::write(&secret, "s").unwrap();
        let out = directory.path().join("data/out");
        std::fs::create_dir(&out).unwrap();
        std::os::unix::fs::symlink(&secret, out.join("link")).unwrap();
        std::os::unix::fs::symlink(directory.path(), out.join("top")).unwrap();
        for path in ["out/link", "out/top/secret", "out/top/new"] {
            let read = call(&files, "fs.read", json!({"path": path})).await.unwrap_err();
            assert_ne!(read.kind, ErrorKind::Internal, "{path}: {read}");
            let write = json!({"path": path, "content": {"text": "x"}});
            call(&files, "fs.write", write).await.unwrap_err();
        }
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "s");
        assert!(!directory.path().join("new").exists());
    }

    #[tokio::test]
    async fn the_data_directory_has_a_limit() {
        let (_directory, files) = files(&["."], &["."]);
        let write = |name: &str, size: usize| json!({"path": name, "content": {"text": "x".repeat(size)}});
        call(&files, "fs.write", write("a", 50_000)).await.unwrap();
        let error = call(&files, "fs.write", write("b", 20_000)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Limit);
        let error = call(&files, "fs.mkdir", json!({"path": "a/b/c/d/e/f/g"})).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Limit, "directories count");
        call(&files, "fs.write", write("a", 10)).await.unwrap();
        call(&files, "fs.write", write("b", 20_000)).await.unwrap();
    }

    #[tokio::test]
    async fn the_hosts_own_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for entry in ["/", directory.path().to_str().unwrap()] {
            let manifest: Manifest = serde_json::from_value(json!({
                "manifest": 1, "name": "p", "version": "1.0.0", "runtime": "python", "entry": "m:f",
                "sandbox": {"fsAccess": {"read": [entry]}},
            }))
            .unwrap();
            assert!(Files::open(&manifest, directory.path(), &[directory.path()]).is_err(), "{entry}");
        }
    }
}

//! Workspaces, copies and change sets for tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cofferdam_changes::{
    Applied, ApplyOptions, Bounds, ChangeSet, ChangesError, Header, LayerWriter, Summary, apply, capture_comparison,
};
use tempfile::TempDir;

/// A workspace, and the copy that the guest changes.
pub struct Fixture {
    pub temp: TempDir,
    pub base: PathBuf,
    pub guest: PathBuf,
    pub header: Header,
}

impl Fixture {
    /// Creates both directories with the same files, each `(path, contents)`, some time before the sandbox starts.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (base, guest) = (temp.path().join("base"), temp.path().join("guest"));
        for root in [&base, &guest] {
            fs::create_dir(root).unwrap();
            fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
            for (path, text) in files {
                put(root, path, text);
            }
        }
        let header = start(&base);
        Self { temp, base, guest, header }
    }

    /// Creates both directories empty, for a test in which the time of changes is of no interest.
    pub fn untimed() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (base, guest) = (temp.path().join("base"), temp.path().join("guest"));
        fs::create_dir(&base).unwrap();
        fs::create_dir(&guest).unwrap();
        let header = Header::of(&base, File::open(&base).unwrap().as_fd(), i64::MAX).unwrap();
        Self { temp, base, guest, header }
    }

    pub fn open(&self) -> File {
        File::open(&self.base).unwrap()
    }

    pub fn capture(&self) -> (ChangeSet, Summary) {
        self.capture_with(&Bounds::default()).unwrap()
    }

    pub fn capture_with(&self, bounds: &Bounds) -> Result<(ChangeSet, Summary), ChangesError> {
        let file = tempfile::tempfile().unwrap();
        let (now, base) = (File::open(&self.guest).unwrap(), self.open());
        let summary = capture_comparison(now.as_fd(), base.as_fd(), &self.header, &file, bounds)?;
        Ok((ChangeSet::read(file, bounds)?, summary))
    }

    pub fn set(&self) -> ChangeSet {
        self.capture().0
    }

    pub fn apply(&self, set: &ChangeSet, options: &ApplyOptions) -> Applied {
        apply(set, self.open().as_fd(), options).unwrap()
    }

    /// Applies everything, without conflicts, refusals and errors.
    pub fn apply_all(&self, set: &ChangeSet) -> Vec<PathBuf> {
        let done = self.apply(set, &ApplyOptions::default());
        assert!(done.conflicts.is_empty() && done.refused.is_empty() && done.failed.is_none(), "{done:?}");
        done.applied
    }

    /// Reads a change set that `write` writes by hand.
    pub fn written(&self, write: impl FnOnce(&mut LayerWriter<&File>)) -> ChangeSet {
        let file = tempfile::tempfile().unwrap();
        let mut writer = LayerWriter::new(&file, &self.header).unwrap();
        write(&mut writer);
        writer.finish().unwrap();
        ChangeSet::read(file, &Bounds::default()).unwrap()
    }
}

/// Waits until the clock of the file system has moved, and returns the header of a sandbox that starts then.
pub fn start(base: &Path) -> Header {
    tick();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let header = Header::of(base, File::open(base).unwrap().as_fd(), i64::try_from(now.as_nanos()).unwrap()).unwrap();
    tick();
    header
}

/// Waits for longer than a tick of the kernel's clock.
pub fn tick() {
    std::thread::sleep(Duration::from_millis(15));
}

/// Writes a file and the directories above it.
pub fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

pub fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Returns everything below a directory: types, permissions, contents and targets by path.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    add(root, Path::new(""), &mut found);
    found
}

fn add(root: &Path, path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(root.join(path)).unwrap() {
        let path = path.join(entry.unwrap().file_name());
        let stat = fs::symlink_metadata(root.join(&path)).unwrap();
        let mode = stat.permissions().mode() & 0o7777;
        let text = if stat.is_dir() {
            add(root, &path, found);
            format!("directory {mode:o}")
        } else if stat.is_symlink() {
            format!("link {}", fs::read_link(root.join(&path)).unwrap().display())
        } else if stat.is_file() {
            format!("file {mode:o} {:?}", String::from_utf8_lossy(&fs::read(root.join(&path)).unwrap()))
        } else {
            "other".to_owned()
        };
        found.insert(path, text);
    }
}

pub fn link(target: &str, root: &Path, path: &str) {
    symlink(target, root.join(path)).unwrap();
}

pub fn bytes(name: &[u8]) -> OsString {
    OsString::from_vec(name.to_vec())
}

pub fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

/// A tar that is written field by field.
pub struct Forge(pub Vec<u8>);

impl Forge {
    pub fn new(header: &Header) -> Self {
        let mut bytes = Vec::new();
        LayerWriter::new(&mut bytes, header).unwrap();
        Self(bytes)
    }

    pub fn entry(self, kind: u8, name: &[u8], contents: &[u8]) -> Self {
        self.member(kind, name, b"", contents, contents.len() as u64)
    }

    pub fn member(mut self, kind: u8, name: &[u8], target: &[u8], contents: &[u8], size: u64) -> Self {
        let mut header = tar_header();
        header[..name.len()].copy_from_slice(name);
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[156] = kind;
        header[157..157 + target.len()].copy_from_slice(target);
        seal(&mut header);
        self.0.extend(header);
        self.0.extend(contents);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).0
    }

    pub fn read(self) -> Result<ChangeSet, ChangesError> {
        read_bytes(&self.end())
    }
}

pub fn read_bytes(bytes: &[u8]) -> Result<ChangeSet, ChangesError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    ChangeSet::read(file, &Bounds::default())
}

fn tar_header() -> [u8; 512] {
    let mut header = [0; 512];
    header[100..108].copy_from_slice(b"0000644\0");
    header[257..265].copy_from_slice(b"ustar  \0");
    header
}

/// Sets the checksum of a header.
pub fn seal(header: &mut [u8]) {
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// A record of an extended header.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest + 1..).find(|length| *length == rest + length.to_string().len()).unwrap();
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend(value);
    record.push(b'\n');
    record
}

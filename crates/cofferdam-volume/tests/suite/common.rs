//! Stores, tars and trees for tests.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cofferdam_linux::loop_device;
use cofferdam_volume::{Access, Bounds, Exported, Imported, Name, Request, Store, Through, VolumeError};
use tar::{EntryType, Header};
use tempfile::TempDir;

/// Size of small volumes.
pub const SMALL: u64 = 32 << 20;

pub struct Fixture {
    pub temp: TempDir,
    pub store: Store,
}

impl Fixture {
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(&temp.path().canonicalize().unwrap().join("volumes")).unwrap();
        Self { temp, store }
    }

    /// Returns the store's directory.
    pub fn path(&self) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join("volumes")
    }

    /// Returns the names in the store's directory, except its lock.
    pub fn entries(&self) -> Vec<String> {
        let names = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != ".lock").collect();
        names.sort();
        names
    }

    pub fn import(&self, volume: &str, size: Option<u64>, tar: &[u8]) -> Result<Imported, VolumeError> {
        self.store.import(&name(volume), size, tar, &Bounds::default(), &mut |_| ())
    }

    pub fn export(&self, volume: &str) -> Result<(Vec<u8>, Exported), VolumeError> {
        let mut tar = Vec::new();
        let exported = self.store.export(&name(volume), &mut tar, &Bounds::default(), &mut |_| ())?;
        Ok((tar, exported))
    }
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn request(access: Access, through: Through) -> Request<'static> {
    Request { access, through, purpose: "a test" }
}

/// Returns false, and reports it, if the host cannot create file systems.
pub fn has_mkfs(test: &str) -> bool {
    let has = cofferdam_tree::ext4::version().is_ok();
    if !has {
        println!("SKIP {test}: no mkfs.ext4 (package e2fsprogs)");
    }
    has
}

/// Returns false, and reports it, if this process cannot mount files.
pub fn can_mount(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root mounts file systems");
        return false;
    }
    if let Err(error) = loop_device::probe() {
        println!("SKIP {test}: {error}");
        return false;
    }
    has_mkfs(test)
}

/// Returns the path of a file in a detached mount.
pub fn inside(mount: &OwnedFd, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{path}", mount.as_raw_fd()))
}

/// Returns loop devices with this file behind them.
pub fn loops(disk: &Path) -> usize {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let behind = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("loop/backing_file")).ok();
    devices.filter_map(behind).filter(|text| text.trim().starts_with(disk.to_str().unwrap())).count()
}

/// A tar that is written member by member.
pub struct Forge(tar::Builder<Vec<u8>>);

impl Forge {
    pub fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    pub fn file(self, path: &str, contents: &[u8]) -> Self {
        self.member(EntryType::Regular, path, "", 0o644, contents)
    }

    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.member(EntryType::Directory, path, "", mode, b"")
    }

    pub fn link(self, path: &str, target: &str) -> Self {
        self.member(EntryType::Symlink, path, target, 0o777, b"")
    }

    /// Adds a member with any path and target, which the library would refuse.
    pub fn member(mut self, kind: EntryType, path: &str, target: &str, mode: u32, contents: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_600_000_000);
        header.set_uid(4711);
        header.set_gid(4711);
        header.set_size(contents.len() as u64);
        let old = header.as_gnu_mut().unwrap();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.0.append(&header, contents).unwrap();
        self
    }

    pub fn pax(mut self, key: &str, value: &[u8]) -> Self {
        self.0.append_pax_extensions([(key, value)]).unwrap();
        self
    }

    pub fn end(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Returns everything in a tar by path: type, mode, time, contents or target.
pub fn read(tar: &[u8]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for member in tar::Archive::new(tar).entries().unwrap() {
        let mut member = member.unwrap();
        let path = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let header = member.header().clone();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0), "{path}");
        let mode = header.mode().unwrap();
        let text = match header.entry_type() {
            EntryType::Directory => format!("directory {mode:o}"),
            EntryType::Symlink => format!("link {}", member.link_name().unwrap().unwrap().display()),
            EntryType::Link => format!("hard link {}", member.link_name().unwrap().unwrap().display()),
            EntryType::Regular => {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut member, &mut bytes).unwrap();
                let shown = if bytes.len() > 100 { format!("{} bytes", bytes.len()) } else { format!("{bytes:?}") };
                format!("file {mode:o} {} {shown}", header.mtime().unwrap())
            }
            other => format!("{other:?}"),
        };
        assert!(found.insert(path.clone(), text).is_none(), "{path} occurs twice");
    }
    found
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

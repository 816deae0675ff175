//! Fingerprints of files of the workspace, by which later changes on the host are detected.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use sha2::{Digest as _, Sha256};

use crate::bounds::{MAX_DEPTH, MAX_VISITED};
use crate::error::{ChangesError, Result, io};
use crate::tree;

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, fifo or socket.
    Other,
}

impl FileKind {
    const NAMES: [(Self, &str); 4] =
        [(Self::File, "file"), (Self::Directory, "directory"), (Self::Symlink, "symlink"), (Self::Other, "other")];

    /// Returns the name in change sets and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("other", |(_, name)| name)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
    }
}

impl From<&Stat> for FileKind {
    fn from(stat: &Stat) -> Self {
        match tree::kind(stat) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }
}

/// Properties of a file that change when the file is changed or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// Type of the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the contents, in nanoseconds since the epoch.
    pub mtime: i64,
    /// Time of the last change of the contents or the properties, in nanoseconds since the epoch.
    pub ctime: i64,
    /// Number of the inode.
    pub inode: u64,
    /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
    pub mode: u32,
}

impl Fingerprint {
    /// Returns the fingerprint of a file.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        Self {
            kind: stat.into(),
            size: tree::size(stat),
            mtime: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            ctime: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
            inode: stat.st_ino,
            mode: stat.st_mode & 0o7777,
        }
    }

    /// Returns true if `now` is the same, unchanged file. A directory is the same while its permissions are.
    #[must_use]
    pub fn matches(&self, now: &Self) -> bool {
        let directories = self.kind == FileKind::Directory && now.kind == FileKind::Directory;
        if directories { self.mode == now.mode } else { self == now }
    }

    pub(crate) fn encode(&self) -> String {
        let Self { kind, size, mtime, ctime, inode, mode } = self;
        format!("{} {size} {mtime} {ctime} {inode} {mode:o}", kind.name())
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let found = Self {
            kind: FileKind::parse(parts.next()?)?,
            size: parts.next()?.parse().ok()?,
            mtime: parts.next()?.parse().ok()?,
            ctime: parts.next()?.parse().ok()?,
            inode: parts.next()?.parse().ok()?,
            mode: u32::from_str_radix(parts.next()?, 8).ok()?,
        };
        (parts.next().is_none() && found.encode() == text && found.mode <= 0o7777).then_some(found)
    }
}

fn nanoseconds(seconds: i64, nanoseconds: u64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(i64::try_from(nanoseconds).unwrap_or(0))
}

/// Digest of a directory tree of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeDigest {
    /// Number of files below the directory.
    pub files: u64,
    /// SHA-256 of the paths and fingerprints.
    pub sha256: String,
}

impl TreeDigest {
    pub(crate) fn encode(&self) -> String {
        format!("{} {}", self.files, self.sha256)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (files, sha256) = text.split_once(' ')?;
        let found = Self { files: files.parse().ok()?, sha256: sha256.to_owned() };
        (cofferdam_util::sha256::is_digest(sha256) && found.encode() == text).then_some(found)
    }
}

/// The file of the workspace that a change replaces or deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Fingerprint of the file.
    pub fingerprint: Fingerprint,
    /// Digest of everything below, if the file is a directory that is deleted or replaced.
    pub tree: Option<TreeDigest>,
}

/// Everything below a directory, in the order of paths.
#[derive(Debug, Default)]
pub(crate) struct Subtree {
    pub files: Vec<(PathBuf, Fingerprint)>,
}

impl Subtree {
    /// Walks a directory without following links.
    pub fn walk(directory: BorrowedFd<'_>) -> Result<Self> {
        let mut found = Self::default();
        found.add(directory, Path::new(""), 0)?;
        Ok(found)
    }

    fn add(&mut self, directory: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(ChangesError::TooLarge { what: "nested directories", max: MAX_DEPTH as u64 });
        }
        let names = tree::names(directory, MAX_VISITED.saturating_sub(self.files.len())).map_err(io("read", path))?;
        for name in names {
            let path = path.join(&name);
            let Some(stat) = tree::stat(directory, &name).map_err(io("inspect", &path))? else { continue };
            let fingerprint = Fingerprint::of(&stat);
            self.files.push((path.clone(), fingerprint));
            if fingerprint.kind == FileKind::Directory {
                let below = tree::subdirectory(directory, &name).map_err(io("open", &path))?;
                self.add(below.as_fd(), &path, depth + 1)?;
            }
        }
        Ok(())
    }

    pub fn digest(&self) -> TreeDigest {
        let mut hasher = Sha256::new();
        for (path, fingerprint) in &self.files {
            let path = path.as_os_str().as_encoded_bytes();
            // Times of a directory change with its entries, which are hashed themselves.
            let text = match fingerprint.kind {
                FileKind::Directory => format!("directory {:o}", fingerprint.mode),
                _ => fingerprint.encode(),
            };
            for part in [path, text.as_bytes()] {
                hasher.update((part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        let sha256 = cofferdam_util::hex::encode(hasher.finalize());
        TreeDigest { files: self.files.len() as u64, sha256 }
    }

    /// Returns true if a file was changed or added at or after a time.
    pub fn changed_since(&self, time: i64) -> bool {
        self.files.iter().any(|(_, fingerprint)| fingerprint.ctime >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_parsed_strictly() {
        let one = Fingerprint { kind: FileKind::File, size: 1, mtime: -2, ctime: 3, inode: 4, mode: 0o644 };
        assert_eq!(Fingerprint::parse(&one.encode()), Some(one));
        for text in [
            "",
            "file",
            "file 1 2 3 4 644 5",
            "file 01 2 3 4 644",
            "x 1 2 3 4 644",
            "file 1 2 3 4 77777",
            "file 1 2 3 4 -1",
        ] {
            assert_eq!(Fingerprint::parse(text), None, "{text}");
        }
        assert_eq!(TreeDigest::parse("1 abc"), None);
    }

    #[test]
    fn trees_differ_when_a_file_is_added_or_changed() {
        let temp = tempfile::tempdir().unwrap();
        let digest = || {
            let directory = std::fs::File::open(temp.path()).unwrap();
            Subtree::walk(directory.as_fd()).unwrap().digest()
        };
        let empty = digest();
        std::fs::create_dir(temp.path().join("d")).unwrap();
        let one = digest();
        std::fs::write(temp.path().join("d/f"), "1").unwrap();
        let two = digest();
        std::fs::write(temp.path().join("d/f"), "22").unwrap();
        let all = [empty, one, two, digest()];
        assert!((1..4).all(|at| all[at - 1] != all[at]), "{all:?}");
        assert_eq!(all[3].files, 2);
    }
}

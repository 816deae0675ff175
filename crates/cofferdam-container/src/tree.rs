//! A directory as an uncompressed tar, made while it is read: no link is followed, and no file is held whole.
//!
//! Every directory is opened beneath the one above it by a single name that is no link, so that nobody who changes the
//! tree meanwhile can lead the walk elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use tar::{Builder, EntryType, Header};

/// More levels than any root file system has.
const DEEPEST: usize = 256;
/// More entries than any image needs.
const MOST_ENTRIES: usize = 4_000_000;

/// What came of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Walked {
    pub entries: usize,
    /// Files that were left out: sockets, fifos and devices. The first few.
    pub left_out: Vec<PathBuf>,
    pub left_out_in_all: usize,
}

const NAMED: usize = 20;

/// Writes the tree beneath `root` as a tar.
pub(crate) fn write(root: &Path, into: &mut impl Write) -> io::Result<Walked> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let mut walk = Walk { tar: Builder::new(into), walked: Walked::default() };
    walk.directory(root.as_fd(), Path::new(""), 0)?;
    walk.tar.finish()?;
    Ok(walk.walked)
}

struct Walk<W: Write> {
    tar: Builder<W>,
    walked: Walked,
}

impl<W: Write> Walk<W> {
    fn directory(&mut self, directory: impl AsFd, path: &Path, depth: usize) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(io::Error::other(format!("{}: more than {DEEPEST} directories deep", path.display())));
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        // One tree gives one tar.
        names.sort();
        for name in names {
            let name = OsStr::from_bytes(&name);
            self.entry(directory.as_fd(), name, &path.join(name), depth)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.join(name).display())))?;
        }
        Ok(())
    }

    fn entry(&mut self, above: impl AsFd, name: &OsStr, path: &Path, depth: usize) -> io::Result<()> {
        self.walked.entries += 1;
        if self.walked.entries > MOST_ENTRIES {
            return Err(io::Error::other(format!("more than {MOST_ENTRIES} files")));
        }
        let stat = rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = open(above, name, OFlags::DIRECTORY)?;
                let mut header = header(&rustix::fs::fstat(&directory)?, EntryType::Directory, 0);
                self.tar.append_data(&mut header, path, io::empty())?;
                self.directory(directory, path, depth + 1)
            }
            FileType::RegularFile => {
                let file = File::from(open(above, name, OFlags::NONBLOCK)?);
                let stat = rustix::fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return self.leave_out(path);
                }
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let mut header = header(&stat, EntryType::Regular, size);
                // The length was promised: what is cut off meanwhile is zero, and what is added is left out.
                let whole = file.take(size).chain(io::repeat(0)).take(size);
                self.tar.append_data(&mut header, path, whole)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&above, name, Vec::new())?;
                let mut header = header(&stat, EntryType::Symlink, 0);
                self.tar.append_link(&mut header, path, OsStr::from_bytes(target.as_bytes()))
            }
            _ => self.leave_out(path),
        }
    }

    fn leave_out(&mut self, path: &Path) -> io::Result<()> {
        self.walked.left_out_in_all += 1;
        if self.walked.left_out.len() < NAMED {
            self.walked.left_out.push(path.to_owned());
        }
        Ok(())
    }
}

fn open(above: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(above, name, flags, Mode::empty())?)
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    // Rights of another user are of no use inside, where nothing gains any.
    header.set_mode(stat.st_mode & 0o1777);
    header.set_uid(u64::from(stat.st_uid));
    header.set_gid(u64::from(stat.st_gid));
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Kind, contents or target, and permissions.
    type Entry = (EntryType, Vec<u8>, u32);

    fn tar_of(root: &Path) -> (Walked, BTreeMap<String, Entry>) {
        let mut bytes = Vec::new();
        let walked = write(root, &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            if let Some(link) = entry.link_name_bytes() {
                data = link.into_owned();
            }
            let header = entry.header();
            let found = (header.entry_type(), data, header.mode().unwrap());
            (entry.path().unwrap().display().to_string().trim_end_matches('/').to_owned(), found)
        });
        (walked, entries.collect())
    }

    #[test]
    fn a_tree_is_taken_as_it_is_and_no_link_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let long = "d".repeat(120);
        std::fs::create_dir_all(root.path().join(&long).join("e")).unwrap();
        std::fs::write(root.path().join(&long).join("e/file"), "deep").unwrap();
        std::fs::write(root.path().join("program"), "x").unwrap();
        std::fs::set_permissions(root.path().join("program"), PermissionsExt::from_mode(0o6755)).unwrap();
        symlink(outside.path(), root.path().join("away")).unwrap();
        symlink("/etc/passwd", root.path().join("absolute")).unwrap();
        let (walked, entries) = tar_of(root.path());
        assert_eq!(walked.entries, entries.len());
        assert_eq!(entries[&format!("{long}/e/file")].1, b"deep");
        assert_eq!(entries["program"].2, 0o755, "no rights of another user");
        assert_eq!(entries["away"], (EntryType::Symlink, outside.path().as_os_str().as_bytes().to_vec(), 0o777));
        assert_eq!(entries["absolute"].1, b"/etc/passwd");
        assert!(entries.keys().all(|name| !name.contains("secret")));
    }

    #[test]
    fn sockets_and_fifos_are_left_out_and_named() {
        let root = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.path().join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        std::fs::write(root.path().join("file"), "x").unwrap();
        let (walked, entries) = tar_of(root.path());
        assert_eq!(entries.keys().collect::<Vec<_>>(), ["file"]);
        assert_eq!(walked.left_out, [PathBuf::from("fifo"), PathBuf::from("socket")]);
        assert_eq!(walked.left_out_in_all, 2);
    }

    #[test]
    fn a_directory_that_is_a_link_is_no_root_to_walk_through_inside() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("real")).unwrap();
        std::fs::write(root.path().join("real/file"), "x").unwrap();
        symlink("real", root.path().join("link")).unwrap();
        let (_, entries) = tar_of(root.path());
        assert!(!entries.contains_key("link/file"));
        assert!(write(&root.path().join("missing"), &mut Vec::new()).is_err());
    }
}

//! Encoding of a directory as an uncompressed tar stream. No file is buffered whole, and no link is followed.
//!
//! The walk itself is [`cofferdam_linux::walk`]: changes of the tree meanwhile cannot make it leave the directory.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_linux::walk::{self, Entry};
use rustix::fs::Stat;
use tar::{Builder, EntryType, Header};

/// The result of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Walked {
    pub entries: usize,
    /// The first skipped files: sockets, fifos and devices.
    pub left_out: Vec<PathBuf>,
    pub left_out_in_all: usize,
}

const MAX_NAMED: usize = 20;

/// Writes the tree beneath an open directory as a tar.
pub(crate) fn write(root: impl AsFd, into: &mut impl Write) -> io::Result<Walked> {
    let mut tar = Builder::new(into);
    let mut walked = Walked::default();
    walk::walk(root, &mut |path, stat, entry| {
        walked.entries += 1;
        if !append(&mut tar, path, stat, entry)? {
            walked.left_out_in_all += 1;
            if walked.left_out.len() < MAX_NAMED {
                walked.left_out.push(path.to_owned());
            }
        }
        Ok(())
    })?;
    tar.finish()?;
    Ok(walked)
}

/// Adds an entry. Returns false for a type that the tar does not include.
fn append(tar: &mut Builder<impl Write>, path: &Path, stat: &Stat, entry: Entry) -> io::Result<bool> {
    match entry {
        Entry::Directory => tar.append_data(&mut header(stat, EntryType::Directory, 0), path, io::empty()),
        Entry::File(file, size) => {
            // The header has the length: a file that shrinks meanwhile is filled with zeros, one that grows is cut.
            let whole = file.take(size).chain(io::repeat(0)).take(size);
            tar.append_data(&mut header(stat, EntryType::Regular, size), path, whole)
        }
        Entry::Link(target) => tar.append_link(&mut header(stat, EntryType::Symlink, 0), path, target),
        Entry::Other => return Ok(false),
        Entry::Unreadable(error) => return Err(error),
    }?;
    Ok(true)
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    // Drops setuid and setgid, which have no effect inside.
    header.set_mode(stat.st_mode & 0o1777);
    header.set_uid(u64::from(stat.st_uid));
    header.set_gid(u64::from(stat.st_gid));
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::FileType;

    use super::*;

    /// Kind, contents or target, and permissions.
    type Entry = (EntryType, Vec<u8>, u32);

    fn tar_of(root: &Path) -> (Walked, BTreeMap<String, Entry>) {
        let mut bytes = Vec::new();
        let walked = write(File::open(root).unwrap(), &mut bytes).unwrap();
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
    fn sockets_and_fifos_are_skipped_and_named() {
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
    }
}

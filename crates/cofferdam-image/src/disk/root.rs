//! Root file systems: unpacking into a directory that becomes a disk.
//!
//! Sockets, fifos and devices are omitted, and so are setuid and setgid bits. Mount points of a VM are created if they
//! are missing.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::error::{ImageError, Result, io as io_error};
use crate::layer::tree::{Needs, Tree, Whiteouts, inside};

/// The mount points of a VM, with their modes.
const MOUNT_POINTS: &[(&str, u32)] =
    &[("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777), ("workspace", 0o755)];
const MACHINE_ID: &str = "machine-id";
/// D-Bus's directory with the machine ID.
const BUS: &str = "var/lib/dbus";

fn bad(what: String) -> ImageError {
    ImageError::InvalidSource { what }
}

/// Unpacks a tar into an empty directory, and counts its entries.
pub(crate) fn unpack(tar: impl Read, into: &Path, max: u64) -> Result<Needs> {
    let mut tree = Tree::new(into, max, Whiteouts::Ordinary)?;
    tree.extract(tar)?;
    finish(tree)
}

/// Creates the mount points of a VM in an unpacked tree, sets the modes of directories, and counts all entries.
pub(crate) fn finish(tree: Tree) -> Result<Needs> {
    let (mut created, mut needs) = (BTreeMap::new(), Needs::default());
    add_mount_points(tree.path(), &mut needs, &mut created)?;
    let below = |path: PathBuf| path.strip_prefix(tree.path()).map(Path::to_owned).unwrap_or_default();
    let created = created.into_iter().map(|(path, mode)| (below(path), (mode, None))).collect();
    Ok(tree.finish(created)?)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    // An entry that was replaced by a link is skipped: a link has no mode of its own.
    let found = fs::symlink_metadata(path).map_err(io_error("inspect", path))?;
    if found.is_symlink() {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io_error("set the mode of", path))
}

/// Creates the mount points of a VM.
pub(crate) fn add_mount_points(into: &Path, needs: &mut Needs, closed: &mut BTreeMap<PathBuf, u32>) -> Result<()> {
    closed.entry(into.to_owned()).or_insert(0o755);
    for (name, mode) in MOUNT_POINTS {
        let path = into.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(bad(format!("/{name} of the root file system is not a directory"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(&path).map_err(io_error("create", &path))?;
                closed.insert(path, *mode);
                needs.add(4096);
            }
            Err(error) => return Err(io_error("inspect", &path)(error)),
        }
    }
    add_machine_id(into, needs, closed)
}

/// Creates `/etc/machine-id` as an empty file if it is not a regular file: a VM with a read-only root needs a mount
/// point for an ID of its own. D-Bus's ID, which `/etc/machine-id` may have linked to, becomes a link to it, because
/// otherwise all VMs would share that ID.
fn add_machine_id(into: &Path, needs: &mut Needs, closed: &mut BTreeMap<PathBuf, u32>) -> Result<()> {
    let etc = into.join("etc");
    match fs::symlink_metadata(&etc) {
        Ok(found) if found.is_dir() => {}
        // The image has something else there, which stays unchanged. A VM of it cannot be copied; the copy reports
        // that.
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir(&etc).map_err(io_error("create", &etc))?;
            closed.insert(etc.clone(), 0o755);
            needs.add(4096);
        }
        Err(error) => return Err(io_error("inspect", &etc)(error)),
    }
    let path = etc.join(MACHINE_ID);
    let is_regular = match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(found) if found.is_file() => true,
        Ok(_) => fs::remove_file(&path).map(|()| false).map_err(io_error("remove", &path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(io_error("inspect", &path)(error)),
    };
    if !is_regular {
        File::create_new(&path).map_err(io_error("create", &path))?;
        needs.add(0);
        set_mode(&path, 0o444)?;
    }
    link_bus_id(into, needs)
}

/// Makes D-Bus's machine ID, if it exists, a link to `/etc/machine-id`.
fn link_bus_id(into: &Path, needs: &mut Needs) -> Result<()> {
    let wrong = |error: Errno| io_error("link D-Bus's id below", into)(error.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(into, flags, Mode::empty()).map_err(wrong)?;
    // Links in the path are resolved as a guest would, so they lead to nothing outside.
    let Ok(bus) = inside(root.as_fd(), Path::new(BUS)) else { return Ok(()) };
    match rustix::fs::statat(&bus, MACHINE_ID, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => return Ok(()),
        // It may be the same file, if the directory is a link.
        Ok(_) if is_same(into, &bus) => return Ok(()),
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(wrong(error)),
    }
    rustix::fs::unlinkat(&bus, MACHINE_ID, AtFlags::empty()).map_err(wrong)?;
    needs.add(0);
    rustix::fs::symlinkat("/etc/machine-id", &bus, MACHINE_ID).map_err(wrong)
}

/// Returns true if this directory is `/etc` itself.
fn is_same(into: &Path, directory: &OwnedFd) -> bool {
    let both = (rustix::fs::stat(into.join("etc")), rustix::fs::fstat(directory));
    matches!(both, (Ok(etc), Ok(found)) if (etc.st_dev, etc.st_ino) == (found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use tar::{EntryType, Header};

    use super::*;
    use crate::layer::tree::MAX_DEPTH;

    const MAX_SIZE: u64 = 1 << 30;

    fn tar(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        build(&mut tar);
        tar.into_inner().unwrap()
    }

    fn entry(tar: &mut tar::Builder<Vec<u8>>, kind: EntryType, path: &str, link: &str, mode: u32, data: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(data.len() as u64);
        // Written by hand, because the library would refuse hostile names.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, data).unwrap();
    }

    #[test]
    fn a_tar_becomes_a_directory_with_all_mount_points() {
        let temp = tempfile::tempdir().unwrap();
        let bytes = tar(|tar| {
            entry(tar, EntryType::Directory, "closed/", "", 0o555, b"");
            entry(tar, EntryType::Regular, "closed/x", "", 0o4111, b"hello");
            entry(tar, EntryType::Symlink, "link", "/etc/passwd", 0o777, b"");
            entry(tar, EntryType::Char, "null", "", 0o666, b"");
            entry(tar, EntryType::Fifo, "fifo", "", 0o666, b"");
        });
        let needs = unpack(&*bytes, temp.path(), MAX_SIZE).unwrap();
        let mode = |path: &str| fs::symlink_metadata(temp.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!((mode("closed"), mode("closed/x"), mode("tmp")), (0o555, 0o511, 0o1777));
        assert!(!temp.path().join("null").exists() && !temp.path().join("fifo").exists());
        // The mount points, and a directory with the machine ID.
        assert_eq!(needs.inodes, 3 + MOUNT_POINTS.len() as u64 + 2);
        assert_eq!((mode("etc"), mode("etc/machine-id")), (0o755, 0o444));
        fs::set_permissions(temp.path().join("closed"), Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn machine_id_is_replaced_by_a_link() {
        let link = |tar: &mut tar::Builder<Vec<u8>>, path, to| entry(tar, EntryType::Symlink, path, to, 0o777, b"");
        let file = |tar: &mut tar::Builder<Vec<u8>>, path| entry(tar, EntryType::Regular, path, "", 0o444, b"0123\n");
        type Build = fn(&mut tar::Builder<Vec<u8>>);
        let unpacked = |bytes: &[u8]| {
            let temp = tempfile::tempdir().unwrap();
            unpack(bytes, temp.path(), MAX_SIZE).unwrap();
            let bus = fs::read_link(temp.path().join("var/lib/dbus/machine-id")).ok();
            let etc = temp.path().join("etc/machine-id");
            (fs::symlink_metadata(&etc).is_ok_and(|found| found.is_file()), fs::read(&etc).unwrap_or_default(), bus)
        };
        let to_etc = || Some(PathBuf::from("/etc/machine-id"));
        let usual = tar(|tar| {
            file(tar, "var/lib/dbus/machine-id");
            link(tar, "etc/machine-id", "/var/lib/dbus/machine-id");
        });
        assert_eq!(unpacked(&usual), (true, Vec::new(), to_etc()));
        let both = tar(|tar| {
            file(tar, "var/lib/dbus/machine-id");
            file(tar, "etc/machine-id");
        });
        assert_eq!(unpacked(&both), (true, b"0123\n".to_vec(), to_etc()));
        let circle = tar(|tar| {
            link(tar, "var/lib/dbus/machine-id", "/etc/machine-id");
            link(tar, "etc/machine-id", "../var/lib/dbus/machine-id");
        });
        assert_eq!(unpacked(&circle), (true, Vec::new(), to_etc()));
        // Directories that are links: nothing is changed outside, and a target inside is found.
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("machine-id"), "own").unwrap();
        let away = tar(|tar| link(tar, "var/lib/dbus", outside.path().to_str().unwrap()));
        assert_eq!(unpacked(&away), (true, Vec::new(), None));
        assert_eq!(fs::read(outside.path().join("machine-id")).unwrap(), b"own");
        let same = tar(|tar| {
            link(tar, "var/lib/dbus", "/etc");
            file(tar, "etc/machine-id");
        });
        assert_eq!(unpacked(&same), (true, b"0123\n".to_vec(), None));
        // A link at `/etc` stays unchanged.
        let linked: Build = |tar| entry(tar, EntryType::Symlink, "etc", "usr/etc", 0o777, b"");
        assert_eq!(unpacked(&tar(linked)), (false, Vec::new(), None));
    }

    #[test]
    fn escaping_or_oversized_tars_are_refused() {
        let refused = |bytes: &[u8], max| {
            let temp = tempfile::tempdir().unwrap();
            unpack(bytes, &temp.path().join("."), max).unwrap_err().to_string()
        };
        let climbing = tar(|tar| entry(tar, EntryType::Regular, "../x", "", 0o644, b"x"));
        assert!(refused(&climbing, MAX_SIZE).contains("leads out"));
        let through = tar(|tar| {
            entry(tar, EntryType::Symlink, "l", "/tmp", 0o777, b"");
            entry(tar, EntryType::Regular, "l/cofferdam-vm-escaped", "", 0o644, b"x");
        });
        refused(&through, MAX_SIZE);
        assert!(!Path::new("/tmp/cofferdam-vm-escaped").exists());
        let large = tar(|tar| entry(tar, EntryType::Regular, "x", "", 0o644, &[1; 100_000]));
        assert!(refused(&large, 4096).contains("allowed"));
        let wrong = tar(|tar| entry(tar, EntryType::Regular, "workspace", "", 0o644, b"x"));
        assert!(refused(&wrong, MAX_SIZE).contains("not a directory"));
        assert!(
            refused(b"this is no tar, but it is as long as a header of one would have to be.", MAX_SIZE)
                .contains("cannot be read")
        );
    }

    #[test]
    fn too_deep_directories_are_refused_by_any_path() {
        let temp = tempfile::tempdir().unwrap();
        let refused = |bytes: &[u8]| {
            let into = temp.path().join("tree");
            fs::create_dir(&into).unwrap();
            let error = unpack(bytes, &into, MAX_SIZE).unwrap_err().to_string();
            assert!(error.contains("too deep"), "{error}");
            fs::remove_dir_all(&into).unwrap();
        };
        let plain = |parts: usize| {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(0);
            tar.append_data(&mut header, format!("{}f", "d/".repeat(parts)), io::empty()).unwrap();
            tar.into_inner().unwrap()
        };
        refused(&plain(MAX_DEPTH));
        refused(&plain(1200));
        let fine = temp.path().join("fine");
        fs::create_dir(&fine).unwrap();
        unpack(&*plain(MAX_DEPTH - 1), &fine, MAX_SIZE).unwrap();
        let below = "d/".repeat(40);
        refused(&tar(|tar| {
            entry(tar, EntryType::Regular, &format!("{below}f"), "", 0o644, b"");
            entry(tar, EntryType::Symlink, "l0", &below, 0o777, b"");
            for step in 0..30 {
                entry(tar, EntryType::Regular, &format!("l{step}/{below}f"), "", 0o644, b"");
                entry(tar, EntryType::Symlink, &format!("l{}", step + 1), &format!("l{step}/{below}"), 0o777, b"");
            }
        }));
    }
}

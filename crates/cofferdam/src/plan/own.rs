//! Directories of Cofferdam's own, which sandboxes get neither to read nor to change.
//!
//! A guest that can change them could replace images, plugins, settings or kept changes, and so act outside of its
//! sandbox. Files are compared by device and inode, and by their path in their file system. So the result is the same
//! through a symbolic link, `..` or a bind mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cofferdam::{Access, Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::{resident, state};

/// The remedy for a writable directory that contains one of Cofferdam's own.
const REMEDY: &str = "use a directory below it, mount it with :ro or :cow, or move Cofferdam's own directory with \
                      XDG_STATE_HOME, XDG_CACHE_HOME, XDG_DATA_HOME or XDG_CONFIG_HOME";
/// The most links that are followed to a directory.
const MAX_LINKS: usize = 64;
/// Kinds of state that a user without a home keeps in the directory for temporary files.
const KINDS: [&str; 2] = ["changes", "volumes"];

/// Refuses a path that is in a directory of Cofferdam's own, a writable one that contains such a directory, and one
/// that contains the directory of this user's server. `path` has no symbolic links. `access` is the access to the
/// files of the host.
pub fn check(option: &str, named: &str, path: &Path, access: Access) -> Result<()> {
    let server = resident::candidates().directory();
    if shows(path, &server.canonicalize().unwrap_or(server), option == "--root") {
        let message = format!("{option} '{named}' contains the directory of Cofferdam's server");
        return Err(
            Error::new(ErrorKind::Denied, "run", message).with_remedy("use a directory without it, or stop the server")
        );
    }
    check_each(directories(), &format!("{option} '{named}'"), path, access)
}

/// Returns true if a sandbox that mounts `path` could reach the server's directory, and so impersonate the server.
fn shows(path: &Path, server: &Path, as_root: bool) -> bool {
    // A sandbox mounts its own directories over these.
    let covered = |below: &Path| as_root && ["run", "tmp"].iter().any(|mounted| below.starts_with(mounted));
    path.starts_with(server) || (server.is_dir() && server.strip_prefix(path).is_ok_and(|below| !covered(below)))
}

fn check_each(directories: Vec<PathBuf>, what: &str, path: &Path, access: Access) -> Result<()> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let mounted = Location::of(path, &mounts);
    let submounts = submounts(path, &mounts);
    for named in directories {
        // A directory that does not exist has no files to protect.
        let Ok(directory) = named.canonicalize() else { continue };
        let own = Location::of(&directory, &mounts);
        let shown = directory.display();
        if mounted.is_in(&own) || submounts.iter().any(|submount| submount.is_in(&own)) {
            let message = format!("{what} is in '{shown}', a directory of Cofferdam's own");
            return Err(Error::new(ErrorKind::Denied, "run", message)
                .with_remedy("copy what the sandbox needs to another directory"));
        }
        let is_led_elsewhere = || links(&named).iter().any(|parent| Location::of(parent, &mounts).is_in(&mounted));
        let contains = || own.is_in(&mounted) || submounts.iter().any(|submount| own.is_in(submount));
        if access == Access::ReadWrite && (contains() || is_led_elsewhere()) {
            let message = format!(
                "{what} cannot be writable: it contains '{shown}', a directory of Cofferdam's own, or a link to it, which \
                 code in the sandbox could change"
            );
            return Err(Error::new(ErrorKind::Denied, "run", message).with_remedy(REMEDY));
        }
    }
    Ok(())
}

/// Returns the directories that have the symbolic links on the way to a path. A guest that changes one leads the way
/// elsewhere.
fn links(path: &Path) -> Vec<PathBuf> {
    let (mut parents, mut ways) = (Vec::new(), vec![path.to_owned()]);
    while let Some(way) = ways.pop().filter(|_| parents.len() < MAX_LINKS) {
        for part in way.ancestors() {
            let Ok(target) = rustix::fs::readlink(part, Vec::new()) else { continue };
            let Some(Ok(parent)) = part.parent().map(Path::canonicalize) else { continue };
            ways.push(parent.join(OsStr::from_bytes(target.as_bytes())));
            parents.push(parent);
        }
    }
    parents
}

/// Returns the locations of what is mounted below a path, which a sandbox sees, too.
fn submounts(path: &Path, mounts: &str) -> Vec<Location> {
    let below = |line: &str| {
        let mut fields = line.split(' ');
        let (device, root, point) = (fields.nth(2)?, fields.next()?, unescaped(fields.next()?));
        let is_below = point != path && point.starts_with(path);
        is_below.then(|| Location { id: None, ids: Vec::new(), source: Some((device.to_owned(), unescaped(root))) })
    };
    mounts.lines().filter_map(below).collect()
}

/// Returns the directories in which Cofferdam keeps settings, change sets, images, plugins, volumes and sockets. They
/// need not exist.
fn directories() -> Vec<PathBuf> {
    let mut all = cofferdam_changes::OwnDirectories::of_user().paths().to_vec();
    all.push(resident::candidates().directory());
    all.extend(KINDS.map(state::directory));
    all
}

/// The location of a file or directory.
struct Location {
    /// Device and inode of the file, if they could be read.
    id: Option<(u64, u64)>,
    /// Devices and inodes of the file and of all directories above it.
    ids: Vec<(u64, u64)>,
    /// The device of its file system, and its path there. It is the same through each bind mount.
    source: Option<(String, PathBuf)>,
}

impl Location {
    /// Finds the location of a path without symbolic links. `mounts` is the text of `/proc/self/mountinfo`.
    fn of(path: &Path, mounts: &str) -> Self {
        let id = |path: &Path| rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
        Self { id: id(path), ids: path.ancestors().filter_map(id).collect(), source: source(path, mounts) }
    }

    /// Returns true if it is `other`, or below it.
    fn is_in(&self, other: &Self) -> bool {
        let same_source = match (&self.source, &other.source) {
            (Some((device, path)), Some((other_device, other_path))) => {
                device == other_device && path.starts_with(other_path)
            }
            _ => false,
        };
        same_source || other.id.is_some_and(|id| self.ids.contains(&id))
    }
}

/// Returns the device of a file's file system, and its path there. Returns `None` before Linux 5.8, which does not
/// report the mount of a file.
fn source(path: &Path, mounts: &str) -> Option<(String, PathBuf)> {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    let id = found.stx_mnt_id.to_string();
    // Number, number of the parent, device, directory of the file system, mount point.
    let mut fields = mounts.lines().map(|line| line.split(' ')).find(|fields| fields.clone().next() == Some(&*id))?;
    let (device, root, point) = (fields.nth(2)?, fields.next()?, fields.next()?);
    Some((device.to_owned(), unescaped(root).join(path.strip_prefix(unescaped(point)).ok()?)))
}

/// Decodes a path of `/proc/self/mountinfo`, in which a space is `\040`.
fn unescaped(text: &str) -> PathBuf {
    let mut path = text.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        path = path.replace(escape, character);
    }
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_the_server_is_in_no_sandbox() {
        let temp = tempfile::tempdir().unwrap();
        let server = temp.path().join("run/cofferdam");
        let at = |name: &str| temp.path().join(name);
        assert!(!shows(&at(""), &server, false), "there is none");
        assert!(shows(&server, &server, false));
        std::fs::create_dir_all(&server).unwrap();
        for (path, as_root, expected) in [
            ("run/cofferdam", false, true),
            ("run/cofferdam/below", false, true),
            ("run", false, true),
            ("", false, true),
            ("run", true, true),
            ("", true, false),
            ("run/cofferdam-project", false, false),
            ("project", false, false),
        ] {
            assert_eq!(shows(&at(path), &server, as_root), expected, "{path} {as_root}");
        }
    }

    #[test]
    fn own_directories_are_never_mounted_and_their_parents_are_not_writable() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        let own = top.join("home/state/cofferdam");
        let refused = |path: &str, access| {
            let directories = vec![own.clone(), top.join("missing/cofferdam")];
            check_each(directories, "--mount 'x'", &top.join(path), access).err()
        };
        std::fs::create_dir_all(top.join("home/project")).unwrap();
        std::fs::create_dir_all(top.join("missing")).unwrap();
        assert!(refused("home", Access::ReadWrite).is_none(), "nothing is there yet");
        std::fs::create_dir_all(own.join("changes")).unwrap();
        for path in ["home/state/cofferdam", "home/state/cofferdam/changes"] {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let error = refused(path, access).unwrap();
                assert!(error.message().contains("a directory of Cofferdam's own"), "{path}: {error}");
            }
        }
        for path in ["", "home", "home/state"] {
            let error = refused(path, Access::ReadWrite).unwrap();
            assert!(error.message().contains(&format!("it contains '{}'", own.display())), "{path}: {error}");
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.remedy().is_some_and(|remedy| remedy.contains(":ro or :cow")), "{error:?}");
            assert!(refused(path, Access::ReadOnly).is_none(), "{path}");
        }
        for path in ["home/project", "missing"] {
            assert!(refused(path, Access::ReadWrite).is_none(), "{path}");
        }
    }

    #[test]
    fn a_directory_is_found_through_a_link_to_it() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("disk/cofferdam/changes")).unwrap();
        std::os::unix::fs::symlink(top.join("disk"), top.join("state")).unwrap();
        for (path, access) in [("disk", Access::ReadWrite), ("disk/cofferdam/changes", Access::ReadOnly)] {
            let checked = check_each(vec![top.join("state/cofferdam")], "--mount 'x'", &top.join(path), access);
            assert!(checked.is_err(), "{path}");
        }
    }

    /// Promise (Files): A link to a directory of Cofferdam's own is not in a writable mount.
    #[test]
    fn a_link_on_the_way_is_not_writable() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        for directory in ["disk/cofferdam", "home/config", "links"] {
            std::fs::create_dir_all(top.join(directory)).unwrap();
        }
        std::os::unix::fs::symlink("../../links/next", top.join("home/config/cofferdam")).unwrap();
        std::os::unix::fs::symlink(top.join("disk/cofferdam"), top.join("links/next")).unwrap();
        let check = |path: &str, access| {
            check_each(vec![top.join("home/config/cofferdam")], "--mount 'x'", &top.join(path), access).is_err()
        };
        for path in ["home", "home/config", "links", "disk", ""] {
            assert!(check(path, Access::ReadWrite), "{path}");
            assert!(!check(path, Access::ReadOnly), "{path}");
        }
        std::fs::create_dir(top.join("project")).unwrap();
        assert!(!check("project", Access::ReadWrite));
    }

    #[test]
    fn mounts_below_a_path_are_found() {
        let mounts =
            "1 0 8:1 / / rw\n2 1 8:1 /srv/u/state /data/state rw\n3 1 8:2 / /data rw\n4 1 8:3 / /database rw\n";
        let found: Vec<_> = submounts(Path::new("/data"), mounts).into_iter().map(|mount| mount.source).collect();
        assert_eq!(found, [Some(("8:1".to_owned(), PathBuf::from("/srv/u/state")))]);
    }

    #[test]
    fn file_has_the_same_identity_through_all_mounts() {
        let path = Path::new("/proc/self");
        let id = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).unwrap().stx_mnt_id;
        let mounts = format!("{id}1 1 0:1 /x /y rw - a b c\n{id} 1 8:1 /data\\040of/u /proc rw - ext4 /dev/sda1 rw\n");
        assert_eq!(source(path, &mounts), Some(("8:1".to_owned(), PathBuf::from("/data of/u/self"))));
        assert_eq!(source(path, ""), None);
        let at = |source: &str| Location { id: None, ids: Vec::new(), source: Some(("8:1".to_owned(), source.into())) };
        assert!(at("/data/a").is_in(&at("/data")) && at("/data").is_in(&at("/data")));
        assert!(!at("/data").is_in(&at("/data/a")) && !at("/database").is_in(&at("/data")));
    }

    /// Promise (Files): No directory in which Cofferdam keeps files is left out.
    #[test]
    fn all_own_directories_are_known() {
        let all = directories();
        for expected in ["/var/lib/cofferdam", "/run/cofferdam-disks"] {
            assert!(all.iter().any(|path| path == Path::new(expected)), "{expected}: {all:?}");
        }
        for kind in ["changes", "volumes"] {
            assert!(all.contains(&state::directory(kind)), "{kind}: {all:?}");
        }
        assert!(all.contains(&resident::candidates().directory()), "{all:?}");
    }
}

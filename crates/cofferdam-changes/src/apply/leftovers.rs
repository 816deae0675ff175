//! Temporary files and directories of applications, and the removal of those whose process was killed.
//!
//! A temporary file or directory is locked by its process. Links and new, empty directories cannot be locked, or are not
//! locked yet: they belong to no living process if this one has the lock of the workspace exclusively. Links are also removed
//! when they are old.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};

use super::lock;
use crate::bounds::{MAX_DEPTH, MAX_VISITED};
use crate::tree;

/// Beginning of the names of temporary files.
const TEMPORARY: &str = ".cofferdam-tmp-";
/// Number of random bytes in such a name.
const RANDOM: usize = 12;
/// Age at which a temporary link belongs to no living process: it gets its final name at once.
const MAX_LINK_AGE: Duration = Duration::from_secs(60);
/// Maximum number of names in a directory in which leftovers are searched for.
const MAX_SEARCHED: usize = 100_000;

/// Returns a new temporary name.
pub(super) fn random_name() -> io::Result<OsString> {
    Ok(format!("{TEMPORARY}{}", cofferdam_util::hex::random(RANDOM)?).into())
}

/// Returns true if a name has the form of a temporary one.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(TEMPORARY.as_bytes());
    digits.is_some_and(|digits| digits.len() == 2 * RANDOM && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Removes what killed applications of this user left in a directory. What cannot be removed stays for the next
/// application.
pub(super) fn sweep(directory: BorrowedFd<'_>, is_exclusive: bool) {
    for name in tree::names(directory, MAX_SEARCHED).unwrap_or_default() {
        if is_temporary(&name) {
            let _ = remove(directory, &name, is_exclusive);
        }
    }
}

fn remove(directory: BorrowedFd<'_>, name: &OsStr, is_exclusive: bool) -> io::Result<()> {
    let Some(stat) = tree::stat(directory, name)?.filter(is_own) else { return Ok(()) };
    match tree::kind(&stat) {
        FileType::RegularFile => {
            let opened = tree::open_file(directory, name)?;
            if opened.is_some_and(|(file, _)| lock::try_lock(&file).is_ok()) {
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            }
        }
        FileType::Symlink if is_exclusive || is_older(&stat, MAX_LINK_AGE) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?
        }
        FileType::Directory if is_exclusive => {
            let below = tree::subdirectory(directory, name)?;
            if lock::try_lock(&below).is_ok() {
                // Others can give a directory of a third user such a name. Only root could delete what is in it.
                if !rustix::process::geteuid().is_root() {
                    remove_below(below.as_fd(), mount_of(&below)?, &mut 0, 1)?;
                }
                rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns true if a file was created or renamed longer ago than this.
fn is_older(stat: &Stat, age: Duration) -> bool {
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_ctime).unwrap_or(0));
    changed.elapsed().is_ok_and(|since| since > age)
}

/// Returns the device and the mount of a directory.
fn mount_of(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok((rustix::fs::fstat(directory)?.st_dev, found.stx_mnt_id))
}

/// Removes everything in a directory on its own mount, without following links.
fn remove_below(directory: BorrowedFd<'_>, mount: (u64, u64), visited: &mut usize, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("too many nested directories"));
    }
    let names = tree::names(directory, MAX_VISITED.saturating_sub(*visited))?;
    *visited += names.len();
    for name in names {
        let Some(stat) = tree::stat(directory, &name)? else { continue };
        if tree::kind(&stat) != FileType::Directory {
            rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
            continue;
        }
        let below = tree::subdirectory(directory, &name)?;
        if mount_of(&below)? != mount {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        remove_below(below.as_fd(), mount, visited, depth + 1)?;
        rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Returns true if this user can have created a file. Root gives files to the owners of those that they replace.
fn is_own(stat: &Stat) -> bool {
    let user = rustix::process::geteuid();
    user.is_root() || stat.st_uid == user.as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::*;

    #[test]
    fn only_names_of_this_program_are_temporary() {
        assert!(is_temporary(&random_name().unwrap()));
        for name in [".cofferdam-tmp-", ".cofferdam-tmp-0123", ".cofferdam-tmp-0123456789abcdef0123456g", "x"] {
            assert!(!is_temporary(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn old_links_are_those_of_killed_processes() {
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("x", temp.path().join("link")).unwrap();
        let mut stat = rustix::fs::lstat(temp.path().join("link")).unwrap();
        assert!(!is_older(&stat, MAX_LINK_AGE));
        stat.st_ctime -= 62;
        assert!(is_older(&stat, MAX_LINK_AGE));
    }

    /// Promise (Files): What a killed application left is removed. Nothing else is, and nothing through a link.
    #[test]
    fn leftovers_are_removed_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let (work, outside) = (temp.path().join("work"), temp.path().join("outside"));
        fs::create_dir_all(outside.join("deep")).unwrap();
        fs::write(outside.join("deep/file"), "kept").unwrap();
        fs::create_dir(&work).unwrap();
        let name = |digit: &str| work.join(format!("{TEMPORARY}{}", digit.repeat(2 * RANDOM)));
        fs::write(name("0"), "dead").unwrap();
        fs::write(name("1"), "alive").unwrap();
        fs::create_dir_all(name("2").join("a/b")).unwrap();
        fs::write(name("2").join("a/b/c"), "dead").unwrap();
        std::os::unix::fs::symlink(&outside, name("2").join("a/link")).unwrap();
        fs::create_dir_all(name("3").join("alive")).unwrap();
        std::os::unix::fs::symlink(&outside, name("4")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, name("5"), FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in ["plain", ".cofferdam-tmp-notes"] {
            fs::write(work.join(path), "kept").unwrap();
        }
        let alive = [File::open(name("1")).unwrap(), File::open(name("3")).unwrap()];
        assert!(alive.iter().all(|file| lock::try_lock(file).is_ok()));
        let directory = File::open(&work).unwrap();
        let left = |is_exclusive| {
            sweep(directory.as_fd(), is_exclusive);
            let exists = |path: &Path| fs::symlink_metadata(path).is_ok();
            ["0", "1", "2", "3", "4", "5"].map(|digit| exists(&name(digit)))
        };
        assert_eq!(left(false), [false, true, true, true, true, true]);
        // Root keeps what is in directories.
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(left(true), [false, true, is_root, true, false, true]);
        assert!(name("3").join("alive").exists() && work.join("plain").exists());
        assert!(work.join(".cofferdam-tmp-notes").exists() && outside.join("deep/file").exists());
        drop(alive);
        assert_eq!(left(true), [false, false, is_root, is_root, false, true]);
    }
}

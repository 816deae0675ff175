//! Output files that appear complete or not at all: a file gets its name after everything is written.
//!
//! If the file system requires a name earlier, the file has a temporary name with a fixed suffix, and is locked while
//! its writer lives. The next writer into the same directory removes files that killed writers left.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Mode of files: readable only by the owner.
const MODE: Mode = Mode::from_raw_mode(0o600);
/// Suffix of temporary names.
const UNFINISHED: &str = ".cofferdam-unfinished";
/// Maximum part of the name in a temporary name. File systems accept names of 255 bytes.
const MAX_OF_NAME: usize = 160;

/// Treatment of an existing file of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep it and write nothing.
    Keep,
    /// Replace it atomically.
    Replace,
}

/// A file that is being written. If it is dropped before it is [finished](OutFile::finish), it is removed.
#[derive(Debug)]
pub struct OutFile {
    directory: OwnedFd,
    name: OsString,
    shown: String,
    existing: Existing,
    file: File,
    /// Its temporary name, if the file system has no unnamed files, or while it replaces another file.
    temporary: Option<OsString>,
}

impl OutFile {
    /// Creates a file. Refuses an existing name, unless it may be replaced, and a directory without write access.
    pub fn begin(path: &Path, existing: Existing) -> Result<Self> {
        let shown = path.display().to_string();
        let Some(name) = path.file_name() else {
            return Err(
                Error::invalid("save", format!("'{shown}' names no file")).with_remedy("pass the path of a new file")
            );
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|errno| refused("use the directory of", &shown, errno))?;
        sweep(&directory);
        match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(refused("inspect", &shown, errno)),
            Ok(found) if rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() => {
                return Err(Error::invalid("save", format!("'{shown}' is a directory"))
                    .with_remedy("pass the path of a file in it"));
            }
            Ok(_) if existing == Existing::Keep => return Err(taken(&shown)),
            Ok(_) => {}
        }
        let unnamed = rustix::fs::openat(&directory, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, MODE);
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let temporary = temporary_name(name);
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(&directory, &temporary, flags, MODE);
                (file.map_err(|errno| refused("write", &shown, errno))?, Some(temporary))
            }
            Err(errno) => return Err(refused("write", &shown, errno)),
        };
        let out = Self { directory, name: name.to_owned(), shown, existing, file: file.into(), temporary };
        // Usually the file has no name yet. If it has a temporary name, only a writer that removes it can hold a lock.
        match out.file.try_lock() {
            Ok(()) => Ok(out),
            Err(TryLockError::WouldBlock) => Err(refused("write", &out.shown, Errno::AGAIN)),
            // On a file system without locks nothing is swept either.
            Err(TryLockError::Error(_)) => Ok(out),
        }
    }

    /// Returns a handle to write to the file.
    pub fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| {
            Error::new(ErrorKind::Io, "save", format!("cannot write '{}'", self.shown)).with_source(error)
        })
    }

    /// Flushes the file to disk, then gives it its name.
    pub fn finish(mut self) -> Result<()> {
        let shown = self.shown.clone();
        rustix::fs::fsync(&self.file).map_err(|errno| refused("write", &shown, errno))?;
        let named = match self.existing {
            Existing::Keep => self.link(&self.name.clone()),
            Existing::Replace => self.replace(),
        };
        named.map_err(|errno| if errno == Errno::EXIST { taken(&shown) } else { refused("name", &shown, errno) })
    }

    fn replace(&mut self) -> rustix::io::Result<()> {
        if self.temporary.is_none() {
            let temporary = temporary_name(&self.name);
            self.link(&temporary)?;
            self.temporary = Some(temporary);
        }
        if let Some(temporary) = &self.temporary {
            rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name)?;
            self.temporary = None;
        }
        Ok(())
    }

    /// Gives the file a name. Fails if the name exists.
    fn link(&mut self, name: &OsStr) -> rustix::io::Result<()> {
        match &self.temporary {
            Some(temporary) => {
                let linked = rustix::fs::linkat(&self.directory, temporary, &self.directory, name, AtFlags::empty());
                match linked {
                    // File systems without unnamed files often lack hard links too.
                    Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::MLINK) => {
                        self.rename(name)
                    }
                    other => other,
                }
            }
            None => {
                // The kernel's path of the descriptor, which no other process can change.
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, path, &self.directory, name, AtFlags::SYMLINK_FOLLOW)
            }
        }
    }
}

impl OutFile {
    /// Replaces the temporary name with the final one. Fails if the final name exists.
    fn rename(&mut self, name: &OsStr) -> rustix::io::Result<()> {
        let Some(temporary) = &self.temporary else { return Err(Errno::INVAL) };
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.directory, temporary, &self.directory, name, flags)?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Another process may have removed it already.
            let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        }
    }
}

/// Removes files that killed writers left in a directory: this user's unlocked files with a temporary name.
fn sweep(directory: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Files of a directory that cannot be listed cannot be found.
    let Ok(entries) = rustix::fs::openat(directory, ".", flags, Mode::empty()).and_then(Dir::new) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_bytes().starts_with(b".") && name.to_bytes().ends_with(UNFINISHED.as_bytes()) {
            // The next writer tries again.
            let _ = remove_unlocked(directory, name);
        }
    }
}

fn remove_unlocked(directory: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let is_ours =
        FileType::from_raw_mode(found.st_mode).is_file() && found.st_uid == rustix::process::geteuid().as_raw();
    if is_ours && rustix::fs::flock(file.as_fd(), rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
        rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
    }
    Ok(())
}

/// Returns a unique temporary name in the same directory.
fn temporary_name(name: &OsStr) -> OsString {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut temporary = OsString::from(".");
    // Includes the beginning of the name, for people.
    temporary.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(MAX_OF_NAME)]));
    temporary.push(format!(".{}-{:x}{UNFINISHED}", std::process::id(), now.as_nanos()));
    temporary
}

fn taken(shown: &str) -> Error {
    Error::new(ErrorKind::Conflict, "save", format!("'{shown}' already exists"))
        .with_remedy("use another name, or replace it with --force")
}

fn refused(what: &str, shown: &str, errno: Errno) -> Error {
    let (kind, remedy) = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            (ErrorKind::ResourceExhausted, "free space there, or use another path")
        }
        Errno::NOENT | Errno::NOTDIR => (ErrorKind::NotFound, "use a path in a directory that exists"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => (ErrorKind::Denied, "use a path where you may write"),
        _ => (ErrorKind::Io, "use another path"),
    };
    Error::new(kind, "save", format!("cannot {what} '{shown}': {errno}")).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn names(directory: &Path) -> Vec<OsString> {
        let mut all: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        all.sort();
        all
    }

    /// Promise (Virtual machines): An archive is complete or absent.
    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let begun = OutFile::begin(&path, Existing::Keep).unwrap();
        begun.file().unwrap().write_all(b"half").unwrap();
        drop(begun);
        assert!(names(directory.path()).is_empty());
        let begun = OutFile::begin(&path, Existing::Keep).unwrap();
        begun.file().unwrap().write_all(b"whole").unwrap();
        assert!(!path.exists());
        begun.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(OutFile::begin(&path, Existing::Keep).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(names(directory.path()), ["x"]);
    }

    /// Promise (Virtual machines): The next save removes partial archives of killed writers, and no file of live
    /// writers.
    #[test]
    fn files_of_killed_writers_are_removed_and_others_kept() {
        let directory = tempfile::tempdir().unwrap();
        let begin = |name: &str| OutFile::begin(&directory.path().join(name), Existing::Replace).unwrap();
        // A file with a temporary name, as just before a writer finishes.
        let mut living = begin("x");
        let temporary = temporary_name(OsStr::new("x"));
        living.link(&temporary).unwrap();
        living.temporary = Some(temporary.clone());
        let left = directory.path().join(temporary_name(OsStr::new("y")));
        std::fs::write(&left, "half").unwrap();
        std::fs::write(directory.path().join(".others"), "others").unwrap();
        std::os::unix::fs::symlink(".others", directory.path().join(temporary_name(OsStr::new("link")))).unwrap();
        drop(begin("z"));
        assert!(!left.exists() && directory.path().join(&temporary).exists());
        assert_eq!(names(directory.path()).len(), 3);
        living.finish().unwrap();
        assert!(directory.path().join("x").exists() && !directory.path().join(&temporary).exists());
        // A name of maximum length leaves no room for a longer one.
        let long = "n".repeat(255);
        let begun = begin(&long);
        begun.file().unwrap().write_all(b"whole").unwrap();
        begun.finish().unwrap();
        assert_eq!(std::fs::read(directory.path().join(long)).unwrap(), b"whole");
    }

    /// Simulates a file system without unnamed files, and one without hard links.
    ///
    /// Promise (Virtual machines): An archive gets its name only when it is complete.
    #[test]
    fn a_file_that_had_to_have_a_name_gets_its_own_in_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let named = |name: &str| {
            let mut begun = OutFile::begin(&directory.path().join(name), Existing::Keep).unwrap();
            let temporary = temporary_name(OsStr::new(name));
            begun.link(&temporary).unwrap();
            begun.temporary = Some(temporary);
            begun.file().unwrap().write_all(b"whole").unwrap();
            begun
        };
        named("linked").finish().unwrap();
        let mut renamed = named("renamed");
        renamed.rename(OsStr::new("renamed")).unwrap();
        drop(renamed);
        let mut late = named("late");
        std::fs::write(directory.path().join("late"), "others").unwrap();
        assert_eq!(late.rename(OsStr::new("late")), Err(Errno::EXIST));
        assert_eq!(late.finish().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(names(directory.path()), ["late", "linked", "renamed"]);
        for (name, text) in [("late", "others"), ("linked", "whole"), ("renamed", "whole")] {
            assert_eq!(std::fs::read_to_string(directory.path().join(name)).unwrap(), text);
        }
    }

    /// Promise (Virtual machines): An existing file is replaced only on request.
    #[test]
    fn another_is_replaced_only_when_that_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let late = OutFile::begin(&path, Existing::Keep).unwrap();
        std::fs::write(&path, "others").unwrap();
        // The other file was created during the write.
        assert_eq!(late.finish().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"others");
        let begun = OutFile::begin(&path, Existing::Replace).unwrap();
        begun.file().unwrap().write_all(b"ours").unwrap();
        begun.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(directory.path())), (b"ours".to_vec(), vec!["x".into()]));
        for (bad, kind) in
            [("no/such/x", ErrorKind::NotFound), ("..", ErrorKind::InvalidInput), (".", ErrorKind::InvalidInput)]
        {
            let error = OutFile::begin(&directory.path().join(bad), Existing::Replace).unwrap_err();
            assert!(error.kind() == kind && error.remedy().is_some(), "{bad}: {error}");
        }
    }
}

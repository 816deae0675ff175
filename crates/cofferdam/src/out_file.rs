//! A file that is there whole or not at all: it has no name before everything is in it.
//!
//! Where it must have one for the time being, that name says so, and the file is locked for as long as its writer lives. What a
//! killed writer left is removed by the next that writes into the same directory.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofferdam::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Readable by its owner only.
const MODE: Mode = Mode::from_raw_mode(0o600);
/// How names for the time being end.
const UNFINISHED: &str = ".cofferdam-unfinished";
/// File systems take names of 255 bytes.
const MAX_OF_NAME: usize = 160;

/// What is done where the name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and nothing is written.
    Keep,
    /// It is replaced, at once and as a whole.
    Replace,
}

/// A file that is being written. Dropped before it is [finished](OutFile::finish), nothing is left of it.
#[derive(Debug)]
pub struct OutFile {
    directory: OwnedFd,
    name: OsString,
    shown: String,
    existing: Existing,
    file: File,
    /// Its name for the time being, where the file system has no files without any, or while it takes the place of another.
    temporary: Option<OsString>,
}

impl OutFile {
    /// Begins one; refuses a name that is taken, unless that may be replaced, and a directory that cannot be written to.
    pub fn begin(path: &Path, existing: Existing) -> Result<Self> {
        let shown = path.display().to_string();
        let Some(name) = path.file_name() else {
            return Err(
                Error::invalid("save", format!("'{shown}' names no file")).with_remedy("name a file to be made")
            );
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|errno| refused("use the directory of", &shown, errno))?;
        sweep(&directory);
        match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(refused("look at", &shown, errno)),
            Ok(found) if rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() => {
                return Err(
                    Error::invalid("save", format!("'{shown}' is a directory")).with_remedy("name a file in it")
                );
            }
            Ok(_) if existing == Existing::Keep => return Err(taken(&shown)),
            Ok(_) => {}
        }
        let unnamed = rustix::fs::openat(&directory, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, MODE);
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let temporary = other_name(name);
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(&directory, &temporary, flags, MODE);
                (file.map_err(|errno| refused("write", &shown, errno))?, Some(temporary))
            }
            Err(errno) => return Err(refused("write", &shown, errno)),
        };
        let out = Self { directory, name: name.to_owned(), shown, existing, file: file.into(), temporary };
        // Before it has a name, in most places; elsewhere nobody else can have locked it but to remove it.
        match out.file.try_lock() {
            Ok(()) => Ok(out),
            Err(TryLockError::WouldBlock) => Err(refused("write", &out.shown, Errno::AGAIN)),
            // A file system without locks, on which nothing is swept either.
            Err(TryLockError::Error(_)) => Ok(out),
        }
    }

    /// The file, to be written to.
    pub fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| {
            Error::new(ErrorKind::Io, "save", format!("cannot write '{}'", self.shown)).with_source(error)
        })
    }

    /// Gives it its name, once everything is in it and on the disk.
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
            let temporary = other_name(&self.name);
            self.link(&temporary)?;
            self.temporary = Some(temporary);
        }
        if let Some(temporary) = &self.temporary {
            rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name)?;
            self.temporary = None;
        }
        Ok(())
    }

    /// Fails where the name is taken.
    fn link(&mut self, name: &OsStr) -> rustix::io::Result<()> {
        match &self.temporary {
            Some(temporary) => {
                let linked = rustix::fs::linkat(&self.directory, temporary, &self.directory, name, AtFlags::empty());
                match linked {
                    // Where files have to have names, they often have no second one.
                    Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::MLINK) => {
                        self.rename(name)
                    }
                    other => other,
                }
            }
            None => {
                // The kernel's own name for a descriptor, which nobody else can change.
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, own, &self.directory, name, AtFlags::SYMLINK_FOLLOW)
            }
        }
    }
}

impl OutFile {
    /// Gives it its name instead of the one for the time being; fails where that is taken.
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
            // Whoever removed it did our work.
            let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        }
    }
}

/// Removes what killed writers left in a directory: files of ours whose names say so, and that nobody has locked.
fn sweep(directory: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Who may not list it can remove nothing of it.
    let Ok(entries) = rustix::fs::openat(directory, ".", flags, Mode::empty()).and_then(Dir::new) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_bytes().starts_with(b".") && name.to_bytes().ends_with(UNFINISHED.as_bytes()) {
            // What cannot be removed now is left to the next.
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

/// A name beside this one that nobody else has, this long before the year is over.
fn other_name(name: &OsStr) -> OsString {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut other = OsString::from(".");
    // As much of it as leaves room for the rest, for people.
    other.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(MAX_OF_NAME)]));
    other.push(format!(".{}-{:x}{UNFINISHED}", std::process::id(), now.as_nanos()));
    other
}

fn taken(shown: &str) -> Error {
    Error::new(ErrorKind::Conflict, "save", format!("'{shown}' is there already, and stays as it is"))
        .with_remedy("give another name, or --force to replace it")
}

fn refused(what: &str, shown: &str, errno: Errno) -> Error {
    let (kind, remedy) = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            (ErrorKind::ResourceExhausted, "make room there, or name another file")
        }
        Errno::NOENT | Errno::NOTDIR => (ErrorKind::NotFound, "name a file in a directory that exists"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => (ErrorKind::Denied, "name a file where you may write"),
        _ => (ErrorKind::Io, "name another file"),
    };
    Error::new(kind, "save", format!("cannot {what} '{shown}': {errno}")).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn names(place: &Path) -> Vec<OsString> {
        let mut all: Vec<_> = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        all.sort();
        all
    }

    /// Promise (Virtual machines): An archive is complete or absent.
    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        let begun = OutFile::begin(&path, Existing::Keep).unwrap();
        begun.file().unwrap().write_all(b"half").unwrap();
        drop(begun);
        assert!(names(place.path()).is_empty());
        let begun = OutFile::begin(&path, Existing::Keep).unwrap();
        begun.file().unwrap().write_all(b"whole").unwrap();
        assert!(!path.exists());
        begun.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(OutFile::begin(&path, Existing::Keep).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(names(place.path()), ["x"]);
    }

    /// Promise (Virtual machines): The next save removes partial archives of killed writers, and no file of live
    /// writers.
    #[test]
    fn what_killed_writers_left_goes_and_what_others_write_stays() {
        let place = tempfile::tempdir().unwrap();
        let begin = |name: &str| OutFile::begin(&place.path().join(name), Existing::Replace).unwrap();
        // One that has a name for the time being, as a writer has just before the end.
        let mut living = begin("x");
        let temporary = other_name(OsStr::new("x"));
        living.link(&temporary).unwrap();
        living.temporary = Some(temporary.clone());
        let left = place.path().join(other_name(OsStr::new("y")));
        std::fs::write(&left, "half").unwrap();
        std::fs::write(place.path().join(".others"), "others").unwrap();
        std::os::unix::fs::symlink(".others", place.path().join(other_name(OsStr::new("link")))).unwrap();
        drop(begin("z"));
        assert!(!left.exists() && place.path().join(&temporary).exists());
        assert_eq!(names(place.path()).len(), 3);
        living.finish().unwrap();
        assert!(place.path().join("x").exists() && !place.path().join(&temporary).exists());
        // A name of the greatest length leaves room for no other.
        let long = "n".repeat(255);
        let begun = begin(&long);
        begun.file().unwrap().write_all(b"whole").unwrap();
        begun.finish().unwrap();
        assert_eq!(std::fs::read(place.path().join(long)).unwrap(), b"whole");
    }

    /// As on a file system without nameless files, and then on one without second names, too.
    ///
    /// Promise (Virtual machines): An archive gets its name only when it is complete.
    #[test]
    fn a_file_that_had_to_have_a_name_gets_its_own_in_the_end() {
        let place = tempfile::tempdir().unwrap();
        let named = |name: &str| {
            let mut begun = OutFile::begin(&place.path().join(name), Existing::Keep).unwrap();
            let temporary = other_name(OsStr::new(name));
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
        std::fs::write(place.path().join("late"), "others").unwrap();
        assert_eq!(late.rename(OsStr::new("late")), Err(Errno::EXIST));
        assert_eq!(late.finish().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(names(place.path()), ["late", "linked", "renamed"]);
        for (name, text) in [("late", "others"), ("linked", "whole"), ("renamed", "whole")] {
            assert_eq!(std::fs::read_to_string(place.path().join(name)).unwrap(), text);
        }
    }

    /// Promise (Virtual machines): An existing file is replaced only on request.
    #[test]
    fn another_is_replaced_only_when_that_is_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        let late = OutFile::begin(&path, Existing::Keep).unwrap();
        std::fs::write(&path, "others").unwrap();
        // It came while we wrote.
        assert_eq!(late.finish().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"others");
        let begun = OutFile::begin(&path, Existing::Replace).unwrap();
        begun.file().unwrap().write_all(b"ours").unwrap();
        begun.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(place.path())), (b"ours".to_vec(), vec!["x".into()]));
        for (bad, kind) in
            [("no/such/x", ErrorKind::NotFound), ("..", ErrorKind::InvalidInput), (".", ErrorKind::InvalidInput)]
        {
            let error = OutFile::begin(&place.path().join(bad), Existing::Replace).unwrap_err();
            assert!(error.kind() == kind && error.remedy().is_some(), "{bad}: {error}");
        }
    }
}

//! End records that are still owed, over all processes that write to a log.
//!
//! Each writer has a file of its own here, locked for as long as it lives, with the number of its executions that run.
//! A file whose lock can be had is a dead writer's and is removed. All of this happens under the lock of the log.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::failed;
use crate::{Error, Result, names, place};

/// More than one writer can owe.
const MOST: u64 = 1 << 20;
/// Digits of the number in a file, so that it is written over in one piece.
const DIGITS: usize = 8;

/// What this writer owes, and how to count what the others do.
pub(crate) struct Owed {
    directory: OwnedFd,
    name: String,
    file: File,
    own: u64,
    /// Who made the file: a forked child has a copy of this, and must not remove it.
    process: u32,
}

impl Owed {
    /// Begins with nothing owed. Only under the lock of the log.
    pub fn open(log: &OwnedFd) -> Result<Self> {
        let directory = place::own_subdirectory(log, names::OWED)?;
        sweep(&directory, None)?;
        let process = std::process::id();
        for number in 0..MOST {
            let name = format!("{process}-{number}");
            let file = match place::create(&directory, &name) {
                Ok(file) => file,
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            drop(file);
            // Not to append: a number is written over the one before.
            let file = place::open_own_anywhere(&directory, &name)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(failed("lock", &name))?;
            let owed = Self { directory, name, file, own: 0, process };
            owed.write(0)?;
            return Ok(owed);
        }
        Err(Error::Invalid { what: "another writer", reason: "there are too many; end some" })
    }

    /// What this writer owes.
    pub fn own(&self) -> u64 {
        self.own
    }

    /// Sets what this writer owes.
    pub fn set(&mut self, own: u64) -> Result<()> {
        if own > MOST {
            return Err(Error::Invalid { what: "another execution", reason: "too many run at once; wait for some" });
        }
        self.write(own)?;
        self.own = own;
        Ok(())
    }

    /// What all writers owe, and how many others there are.
    pub fn total(&self) -> Result<(u64, usize)> {
        let (others, count) = sweep(&self.directory, Some(&self.name))?;
        Ok((self.own + others, count))
    }

    fn write(&self, own: u64) -> Result<()> {
        self.file.write_all_at(format!("{own:0DIGITS$}").as_bytes(), 0).map_err(failed("write", &self.name))
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            let _ = place::remove(&self.directory, &self.name);
        }
    }
}

/// Adds up what living writers owe, and removes what dead ones left.
fn sweep(directory: &OwnedFd, own: Option<&str>) -> Result<(u64, usize)> {
    let (mut sum, mut living) = (0, 0);
    for name in place::names(directory)? {
        if own == Some(&name) {
            continue;
        }
        let file = match place::open_own_anywhere(directory, &name) {
            Ok(file) => file,
            // Its writer ended just now.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => place::remove(directory, &name)?,
            Err(Errno::WOULDBLOCK) => {
                sum += number(&file, &name)?;
                living += 1;
            }
            Err(error) => return Err(failed("lock", &name)(error)),
        }
    }
    Ok((sum, living))
}

fn number(file: &File, name: &str) -> Result<u64> {
    let mut digits = [0; DIGITS];
    file.read_exact_at(&mut digits, 0).map_err(failed("read", name))?;
    let number = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|number| *number <= MOST).ok_or_else(|| Error::Damaged {
        file: name.to_owned(),
        offset: 0,
        reason: "it says no number of executions".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_are_counted_and_the_dead_removed() {
        let directory = tempfile::tempdir().unwrap();
        let fd = place::own_directory(directory.path()).unwrap();
        let mut first = Owed::open(&fd).unwrap();
        let mut second = Owed::open(&fd).unwrap();
        first.set(3).unwrap();
        second.set(4).unwrap();
        assert_eq!(first.total().unwrap(), (7, 1));
        second.set(1).unwrap();
        assert_eq!(first.total().unwrap(), (4, 1));
        // As if it had been killed: its file stays, its lock does not.
        flock(&second.file, FlockOperation::Unlock).unwrap();
        assert_eq!(first.total().unwrap(), (3, 0));
        assert_eq!(std::fs::read_dir(directory.path().join(names::OWED)).unwrap().count(), 1);
        drop(first);
        assert_eq!(std::fs::read_dir(directory.path().join(names::OWED)).unwrap().count(), 0);
    }
}

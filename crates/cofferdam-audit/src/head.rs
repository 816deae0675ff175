//! The last line of the log, and the head file that names it.
//!
//! The head file of a new log is synchronized and renamed before the first segment, and is then always overwritten in a
//! single write. No crash therefore leaves a segment without a readable head file.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use rustix::fd::AsFd;
use rustix::fs::renameat;
use serde::{Deserialize, Serialize};

use crate::error::failed;
use crate::{Digest, Error, Result, files, names};

/// The fixed length of the file, so that it is overwritten in a single write.
const LENGTH: usize = 160;

/// The position of a line in the chain. Stored out of reach of the log's user, it proves later that a log still
/// contains the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The line's number.
    pub seq: u64,
    /// The number of its segment.
    pub segment: u32,
    /// Its hash.
    pub hash: Digest,
}

/// The head file of a log, held by its writer.
pub(crate) struct HeadFile {
    file: File,
    /// True if it has its final name.
    named: bool,
}

/// An opened head file.
pub(crate) struct Opened {
    pub file: HeadFile,
    /// The content.
    pub head: Option<Head>,
    /// True if the file existed, even if it was unreadable.
    pub was_there: bool,
}

impl HeadFile {
    /// Opens the head file of a log for its writer. Creates a new one if it is missing or unreadable, which replaces it
    /// with [`Self::name`]. Needs the lock of the log.
    pub fn open(directory: impl AsFd + Copy) -> Result<Opened> {
        files::remove(directory, names::NEW_HEAD)?;
        let found = match files::open_own_anywhere(directory, names::HEAD) {
            Ok(file) => Some(file),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let was_there = found.is_some();
        if let Some(file) = found
            && let Some(head) = read(&file)?
        {
            return Ok(Opened { file: Self { file, named: true }, head: Some(head), was_there });
        }
        drop(files::create(directory, names::NEW_HEAD)?);
        let file = files::open_own_anywhere(directory, names::NEW_HEAD)?;
        Ok(Opened { file: Self { file, named: false }, head: None, was_there })
    }

    /// Returns true if it has its final name.
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Overwrites the head.
    pub fn write(&self, head: &Head) -> Result<()> {
        let mut text = serde_json::to_string(head).unwrap_or_default();
        while text.len() < LENGTH - 1 {
            text.push(' ');
        }
        text.push('\n');
        self.file.write_all_at(text.as_bytes(), 0).map_err(failed("write", names::HEAD))
    }

    /// Synchronizes a new head file and gives it its final name, even with [`crate::Sync::Never`]: an empty head file
    /// would look like a log whose end was cut off.
    pub fn name(&mut self, directory: impl AsFd + Copy) -> Result<()> {
        if self.named {
            return Ok(());
        }
        self.file.sync_all().map_err(failed("synchronise", names::HEAD))?;
        renameat(directory, names::NEW_HEAD, directory, names::HEAD).map_err(failed("rename", names::HEAD))?;
        self.named = true;
        rustix::fs::fsync(directory).map_err(failed("synchronize", "the log's directory"))
    }
}

/// Parses a head file. Returns `None` if it is unreadable.
fn read(file: &File) -> Result<Option<Head>> {
    let mut bytes = [0; LENGTH + 1];
    let mut length = 0;
    while length < bytes.len() {
        let count = file.read_at(&mut bytes[length..], length as u64).map_err(failed("read", names::HEAD))?;
        if count == 0 {
            break;
        }
        length += count;
    }
    Ok(serde_json::from_slice(&bytes[..length]).ok())
}

/// Reads the head file of a directory, if it exists; `Err(())` if it is unreadable.
pub(crate) fn of(directory: impl AsFd) -> Result<Option<Result<Head, ()>>> {
    let file = match files::open_regular(directory, names::HEAD, names::HEAD) {
        Ok(file) => file,
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(LENGTH as u64 + 1).read_to_end(&mut text).map_err(failed("read", names::HEAD))?;
    Ok(Some(serde_json::from_slice(&text).map_err(|_| ())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_and_the_longest_fits() {
        let directory = tempfile::tempdir().unwrap();
        let fd = files::own_directory(directory.path()).unwrap();
        assert_eq!(of(&fd).unwrap(), None);
        let mut file = HeadFile::open(&fd).unwrap().file;
        for head in [
            Head { seq: u64::MAX, segment: u32::MAX, hash: Digest::of("x") },
            Head { seq: 1, segment: 1, hash: Digest::ZERO },
        ] {
            file.write(&head).unwrap();
            file.name(&fd).unwrap();
            assert_eq!(HeadFile::open(&fd).unwrap().head, Some(head));
            assert_eq!(of(&fd).unwrap(), Some(Ok(head)));
            assert_eq!(file.file.metadata().unwrap().len(), LENGTH as u64);
        }
    }

    #[test]
    fn an_unusable_head_is_replaced_after_the_new_one_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let fd = files::own_directory(directory.path()).unwrap();
        let path = directory.path().join(names::HEAD);
        for garbage in [String::new(), "garbage".to_owned(), "x".repeat(1000)] {
            std::fs::write(&path, &garbage).unwrap();
            let mut opened = HeadFile::open(&fd).unwrap();
            assert_eq!((opened.head, opened.was_there, opened.file.is_named()), (None, true, false));
            let head = Head { seq: 7, segment: 1, hash: Digest::ZERO };
            opened.file.write(&head).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), garbage);
            opened.file.name(&fd).unwrap();
            assert_eq!(of(&fd).unwrap(), Some(Ok(head)));
            assert!(!directory.path().join(names::NEW_HEAD).exists());
        }
    }
}

//! The last line of the log, and the file that says which it is.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use rustix::fd::AsFd;
use serde::{Deserialize, Serialize};

use crate::error::failed;
use crate::{Digest, Error, Result, names, place};

/// The file has always this length, so that it is written over in one piece.
const LENGTH: usize = 160;

/// A line, by its place in the chain. Kept where nobody can change it, it shows whether a log still has that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The line's number.
    pub seq: u64,
    /// The segment that it is in.
    pub segment: u32,
    /// Its hash.
    pub hash: Digest,
}

/// Opens the head file of a log for its writer, and makes it if it is missing.
pub(crate) fn open(directory: impl AsFd + Copy) -> Result<File> {
    match place::open_own_anywhere(directory, names::HEAD) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        other => return other,
    }
    drop(place::create(directory, names::HEAD)?);
    place::open_own_anywhere(directory, names::HEAD)
}

/// Writes the head over the one before.
pub(crate) fn write(file: &File, head: &Head) -> Result<()> {
    let mut text = serde_json::to_string(head).unwrap_or_default();
    while text.len() < LENGTH - 1 {
        text.push(' ');
    }
    text.push('\n');
    file.write_all_at(text.as_bytes(), 0).map_err(failed("write", names::HEAD))
}

/// Reads a head file; `None` if it is empty or says nothing that can be read.
pub(crate) fn read(file: &File) -> Result<Option<Head>> {
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

/// Reads the head file of a directory, if there is one; `Err(())` in it if it cannot be understood.
pub(crate) fn of(directory: impl AsFd) -> Result<Option<Result<Head, ()>>> {
    let file = match place::open_regular(directory, names::HEAD, names::HEAD) {
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
        let fd = place::own_directory(directory.path()).unwrap();
        assert_eq!(of(&fd).unwrap(), None);
        let file = open(&fd).unwrap();
        assert_eq!(read(&file).unwrap(), None);
        for head in [
            Head { seq: u64::MAX, segment: u32::MAX, hash: Digest::of("x") },
            Head { seq: 1, segment: 1, hash: Digest::ZERO },
        ] {
            write(&file, &head).unwrap();
            assert_eq!(read(&file).unwrap(), Some(head));
            assert_eq!(of(&fd).unwrap(), Some(Ok(head)));
            assert_eq!(file.metadata().unwrap().len(), LENGTH as u64);
        }
    }
}

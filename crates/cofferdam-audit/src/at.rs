//! Reads a file from a place of one's own, whoever else reads through the same descriptor.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// A reader that keeps its own place.
pub(crate) struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> ReadAt<'a> {
    /// From an offset on.
    pub fn new(file: &'a File, at: u64) -> Self {
        Self { file, at }
    }
}

impl Read for ReadAt<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

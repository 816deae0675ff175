//! Reading of segments line by line in bounded memory, and detection of their end.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

use crate::error::failed;
use crate::line::{self, Checked, MAX_LINE};
use crate::{Error, Key, Result};

/// The maximum length in bytes of an unfinished line that a crash may leave.
const MAX_TORN: u64 = 1 << 20;

/// The end of a segment.
#[derive(Debug)]
pub(crate) struct SegmentEnd {
    /// The last complete line.
    pub last: Checked,
    /// The offset after it and its line break.
    pub offset: u64,
    /// The bytes after it.
    pub torn: Vec<u8>,
}

/// Splits bytes into lines.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    buffered: Vec<u8>,
    offset: u64,
}

/// Bytes up to a line break, or to the end.
pub(crate) struct RawLine<'a> {
    /// The bytes without the line break, truncated to the maximum length of a line.
    pub bytes: &'a [u8],
    /// The length with the line break.
    pub length: u64,
    /// The offset in the file.
    pub offset: u64,
    /// True if a line break follows.
    pub ended: bool,
}

impl RawLine<'_> {
    /// Returns true if it exceeds the maximum length of a line.
    pub fn is_too_long(&self) -> bool {
        self.length > MAX_LINE as u64
    }
}

impl<R: Read> Lines<R> {
    /// Creates a reader of lines. `reader` must be at `offset` of the file.
    pub fn new(reader: R, offset: u64) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), buffered: Vec::new(), offset }
    }

    /// Returns the offset of the next line.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next line, or `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<RawLine<'_>>> {
        self.buffered.clear();
        let offset = self.offset;
        let (mut length, mut ended) = (0u64, false);
        while !ended {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                break;
            }
            let position = available.iter().position(|byte| *byte == b'\n');
            let text = &available[..position.unwrap_or(available.len())];
            let room = MAX_LINE.saturating_sub(self.buffered.len());
            self.buffered.extend_from_slice(&text[..text.len().min(room)]);
            ended = position.is_some();
            let used = text.len() + usize::from(ended);
            self.reader.consume(used);
            length += used as u64;
        }
        self.offset += length;
        Ok((length > 0).then_some(RawLine { bytes: &self.buffered, length, offset, ended }))
    }
}

/// A reader with its own position, independent of other users of the descriptor.
pub(crate) struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> ReadAt<'a> {
    /// Creates a reader that starts at an offset.
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

/// Reads the end of a segment. Fails if no crash of a writer can leave such an end.
pub(crate) fn read_end(file: &File, size: u64, name: &str, key: Option<&Key>) -> Result<SegmentEnd> {
    let max = size.min(MAX_TORN + 2 * MAX_LINE as u64);
    let mut window = max.min(2 * MAX_LINE as u64);
    loop {
        let start = size - window;
        let mut bytes = vec![0; window as usize];
        file.read_exact_at(&mut bytes, start).map_err(failed("read", name))?;
        match split(&bytes, start == 0) {
            Some((line, end)) => {
                let damaged = |reason: line::Flaw| Error::Damaged {
                    file: name.to_owned(),
                    offset: start + line as u64,
                    reason: reason.to_string(),
                };
                let last = line::check(&bytes[line..end - 1], key).map_err(damaged)?;
                return Ok(SegmentEnd { last, offset: start + end as u64, torn: bytes.split_off(end) });
            }
            None if window < max => window = max,
            None => {
                let reason = "there is no complete line near its end".to_owned();
                return Err(Error::Damaged { file: name.to_owned(), offset: start, reason });
            }
        }
    }
}

/// Returns the start and the end of the last line that has a line break, if these bytes contain both.
fn split(bytes: &[u8], from_the_start: bool) -> Option<(usize, usize)> {
    let last_break = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let line = match bytes[..last_break].iter().rposition(|byte| *byte == b'\n') {
        Some(before) => before + 1,
        None if from_the_start => 0,
        None => return None,
    };
    Some((line, last_break + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_positions_and_bounds() {
        let long = [vec![b'x'; 200_000], b"\nlast".to_vec()].concat();
        let bytes = [&b"a\n\n"[..], &long].concat();
        let mut lines = Lines::new(&bytes[..], 10);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            seen.push((line.offset, line.length, line.bytes.len(), line.ended, line.is_too_long()));
        }
        assert_eq!(
            seen,
            [
                (10, 2, 1, true, false),
                (12, 1, 0, true, false),
                (13, 200_001, MAX_LINE, true, true),
                (200_014, 4, 4, false, false)
            ]
        );
        assert_eq!(lines.offset(), 200_018);
    }

    #[test]
    fn the_last_line_is_where_its_break_is() {
        for (bytes, start, expected) in [
            (&b"a\nbc\nd"[..], false, Some((2, 5))),
            (b"bc\nd", true, Some((0, 3))),
            (b"bc\nd", false, None),
            (b"bc", true, None),
            (b"", true, None),
            (b"\n", true, Some((0, 1))),
        ] {
            assert_eq!(split(bytes, start), expected, "{bytes:?}");
        }
    }
}

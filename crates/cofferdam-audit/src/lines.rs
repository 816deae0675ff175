//! Reads a segment line by line, in memory that no file can make grow.

use std::io::{self, BufRead, BufReader, Read};

use crate::line::MAX_LINE;

/// Splits bytes into lines.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    kept: Vec<u8>,
    offset: u64,
}

/// Bytes up to a line break, or to the end.
pub(crate) struct RawLine<'a> {
    /// Without the line break; cut if they are longer than a line can be.
    pub bytes: &'a [u8],
    /// How many they are, the line break included.
    pub length: u64,
    /// Where they begin.
    pub offset: u64,
    /// Whether a line break followed.
    pub ended: bool,
}

impl RawLine<'_> {
    /// More than a line can have.
    pub fn is_too_long(&self) -> bool {
        self.length > MAX_LINE as u64
    }
}

impl<R: Read> Lines<R> {
    /// Of what the reader gives from here; `offset` is where that is in the file.
    pub fn new(reader: R, offset: u64) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), kept: Vec::new(), offset }
    }

    /// Where the next line begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What it reads from.
    pub fn file(&self) -> &R {
        self.reader.get_ref()
    }

    /// The next line; `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<RawLine<'_>>> {
        self.kept.clear();
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
            let room = MAX_LINE.saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&text[..text.len().min(room)]);
            ended = position.is_some();
            let used = text.len() + usize::from(ended);
            self.reader.consume(used);
            length += used as u64;
        }
        self.offset += length;
        Ok((length > 0).then_some(RawLine { bytes: &self.kept, length, offset, ended }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_with_their_places_and_bounds() {
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
}

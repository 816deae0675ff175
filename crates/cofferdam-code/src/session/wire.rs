//! The protocol with a session's interpreter: framing of calls, and detection of the end of a call in the output. Pure.

/// The delimiter before the marker that ends a call.
const BEFORE: u8 = 0x1e;
/// The maximum length of the rest of the line after the marker.
const MAX_AFTER: usize = 64;
/// The most output of background threads after the end of a call that is kept for the next call.
const MAX_REST: usize = 64 * 1024;

/// Encodes a call for the interpreter.
pub fn frame(marker: &str, results_path: Option<&str>, code: &str) -> Vec<u8> {
    let body = format!("{marker}\0{}\0{code}", results_path.unwrap_or_default());
    format!("{}\n{body}", body.len()).into_bytes()
}

/// The end of a call as the interpreter reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The code ran to its end. The number is the interpreter's pid in the sandbox in the first report, if it reports
    /// one.
    Done(i32),
    /// The code raised an uncaught error.
    Failed,
    /// The code ended the interpreter.
    Exited(i32),
}

/// One of the two output streams, searched for the end of a call.
#[derive(Debug)]
pub struct Stream {
    word: Vec<u8>,
    held: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Stream {
    /// Creates a stream that searches for the marker of a call.
    pub fn new(marker: &str) -> Self {
        let mut word = vec![BEFORE];
        word.extend_from_slice(marker.as_bytes());
        Self { word, held: Vec::new(), end: None }
    }

    /// Adds output and returns the part that certainly belongs to the call. A possible start of the marker is held
    /// back. After the end of the call, only the first [`MAX_REST`] bytes are kept.
    pub fn feed(&mut self, data: &[u8]) -> Vec<u8> {
        if self.end.is_some() {
            let room = MAX_REST.saturating_sub(self.held.len());
            self.held.extend_from_slice(&data[..room.min(data.len())]);
            return Vec::new();
        }
        self.held.extend_from_slice(data);
        if let Some(at) = find(&self.held, &self.word) {
            let line = &self.held[at + self.word.len()..];
            let ended = line.iter().position(|byte| *byte == b'\n').or((line.len() > MAX_AFTER).then_some(MAX_AFTER));
            let Some(length) = ended else { return self.held.drain(..at).collect() };
            let line = line[..length].to_vec();
            let output = self.held.drain(..at).collect();
            let rest = (self.word.len() + length + 1).min(self.held.len());
            self.held.drain(..rest);
            self.held.truncate(MAX_REST);
            self.end = Some(line);
            return output;
        }
        let longest = self.word.len().min(self.held.len() + 1) - 1;
        let begun = (0..=longest).rev().find(|length| self.held.ends_with(&self.word[..*length])).unwrap_or(0);
        self.held.drain(..self.held.len() - begun).collect()
    }

    /// Returns true if the end of the call was found.
    pub fn ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the report of the interpreter, which is only on standard output. Returns `None` if it is invalid.
    pub fn report(&self) -> Option<Report> {
        let line = std::str::from_utf8(self.end.as_ref()?).ok()?;
        let (word, code) = line.trim().split_once(' ')?;
        let code: i32 = code.parse().ok()?;
        match word {
            "ok" => Some(Report::Done(code)),
            "error" => Some(Report::Failed),
            "exit" => Some(Report::Exited(code)),
            _ => None,
        }
    }

    /// Returns the output after the end of the call, or that was held back.
    pub fn rest(self) -> Vec<u8> {
        self.held
    }
}

fn find(data: &[u8], word: &[u8]) -> Option<usize> {
    data.windows(word.len()).position(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_is_found_however_it_is_cut() {
        let whole = b"a\x1eword\x1enot\x1ew1 ok 0\nlater";
        for first in 0..whole.len() {
            for second in first..whole.len() {
                let mut stream = Stream::new("w1");
                let mut output = stream.feed(&whole[..first]);
                output.extend(stream.feed(&whole[first..second]));
                output.extend(stream.feed(&whole[second..]));
                assert_eq!(output, b"a\x1eword\x1enot", "{first} {second}");
                assert_eq!(stream.report(), Some(Report::Done(0)));
                assert_eq!(stream.rest(), b"later");
            }
        }
    }

    #[test]
    fn output_after_the_end_marker_is_bounded() {
        let flood = [b'x'; 100_000];
        let mut stream = Stream::new("w1");
        assert_eq!(stream.feed(&[b"a\x1ew1 ok 0\n", &flood[..]].concat()), b"a");
        assert_eq!(stream.held.len(), MAX_REST);
        let mut stream = Stream::new("w1");
        stream.feed(b"\x1ew1 ok 0\n");
        for _ in 0..50 {
            assert!(stream.feed(&flood).is_empty());
        }
        assert_eq!((stream.held.len(), stream.held.capacity() < 2 * flood.len()), (MAX_REST, true));
        assert_eq!(stream.rest().len(), MAX_REST);
    }

    #[test]
    fn output_is_not_held_back_without_need() {
        let mut stream = Stream::new("w1");
        assert_eq!(stream.feed(b"hi\n"), b"hi\n");
        assert_eq!(stream.feed(b"x\x1e"), b"x");
        assert_eq!(stream.feed(b"y"), b"\x1ey");
    }

    #[test]
    fn malformed_end_marker_has_no_status() {
        for line in ["", " ok", " ok x", " fine 0", " \u{1b}[31m 0"] {
            let mut stream = Stream::new("w");
            stream.feed(format!("\x1ew{line}\n").as_bytes());
            assert!(stream.ended() && stream.report().is_none(), "{line:?}");
        }
        let mut stream = Stream::new("w");
        stream.feed(b"\x1ew");
        stream.feed(&[b'x'; 1000]);
        assert!(stream.ended() && stream.report().is_none(), "a line without an end");
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(b"\x1ew1 \n".to_vec()), 0..6), 0..12)) {
            let mut stream = Stream::new("w1");
            let mut output = Vec::new();
            for piece in &pieces {
                output.extend(stream.feed(piece));
            }
            let all: Vec<u8> = pieces.concat();
            if !stream.ended() {
                output.extend(stream.rest());
                prop_assert_eq!(output, all);
            } else {
                prop_assert!(all.starts_with(&output));
            }
        }
    }
}

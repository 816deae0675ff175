//! What goes to an interpreter, and how the end of a call is found in its output. Pure.

/// What stands before the word that ends a call.
const BEFORE: u8 = 0x1e;
/// The longest that may stand after the word, on its line.
const MAX_AFTER: usize = 64;
/// What background threads wrote after the end, kept for the next call.
const MAX_REST: usize = 64 * 1024;

/// A call as the interpreter reads it.
pub fn frame(mark: &str, place: Option<&str>, code: &str) -> Vec<u8> {
    let body = format!("{mark}\0{}\0{code}", place.unwrap_or_default());
    format!("{}\n{body}", body.len()).into_bytes()
}

/// How a call ended, as the interpreter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The code ran to its end. The number is the interpreter's pid inside after its start, where it reports one.
    Done(i32),
    /// It raised an error that nobody caught.
    Failed,
    /// It ended the interpreter.
    Exited(i32),
}

/// One of two outputs, in which the end of a call is looked for.
#[derive(Debug)]
pub struct Stream {
    word: Vec<u8>,
    held: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Stream {
    /// Looks for the word of a call in what comes, `before` first.
    pub fn new(mark: &str) -> Self {
        let mut word = vec![BEFORE];
        word.extend_from_slice(mark.as_bytes());
        Self { word, held: Vec::new(), end: None }
    }

    /// Takes what came; gives what is output for certain. Nothing of a word that may have begun is given.
    /// After the end only its first [`MAX_REST`] bytes are kept.
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
        let most = self.word.len().min(self.held.len() + 1) - 1;
        let begun = (0..=most).rev().find(|length| self.held.ends_with(&self.word[..*length])).unwrap_or(0);
        self.held.drain(..self.held.len() - begun).collect()
    }

    /// Whether the call has ended here.
    pub fn ended(&self) -> bool {
        self.end.is_some()
    }

    /// How, as the interpreter says; only standard output says it. `None` for nonsense.
    pub fn said(&self) -> Option<Said> {
        let line = std::str::from_utf8(self.end.as_ref()?).ok()?;
        let (word, code) = line.trim().split_once(' ')?;
        let code: i32 = code.parse().ok()?;
        match word {
            "ok" => Some(Said::Done(code)),
            "error" => Some(Said::Failed),
            "exit" => Some(Said::Exited(code)),
            _ => None,
        }
    }

    /// What came after the end, or was held back until now.
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
                assert_eq!(stream.said(), Some(Said::Done(0)));
                assert_eq!(stream.rest(), b"later");
            }
        }
    }

    #[test]
    fn little_is_kept_of_what_comes_after_the_end() {
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
    fn nonsense_after_the_word_says_nothing() {
        for line in ["", " ok", " ok x", " fine 0", " \u{1b}[31m 0"] {
            let mut stream = Stream::new("w");
            stream.feed(format!("\x1ew{line}\n").as_bytes());
            assert!(stream.ended() && stream.said().is_none(), "{line:?}");
        }
        let mut stream = Stream::new("w");
        stream.feed(b"\x1ew");
        stream.feed(&[b'x'; 1000]);
        assert!(stream.ended() && stream.said().is_none(), "a line without an end");
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

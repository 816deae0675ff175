//! The beginning and the end of output of any length, and the number of characters between. Pure.

use std::collections::VecDeque;

/// The beginning and the end of a stream. Text is UTF-8. Each invalid byte counts and shows as at most one character.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeadTail {
    pub(crate) head: Vec<u8>,
    /// Number of characters between the two; 0 if the head is everything.
    pub(crate) between: u64,
    pub(crate) tail: Vec<u8>,
}

impl HeadTail {
    /// Returns the stream as text of at most `max` characters. A longer stream is reduced to its beginning and end,
    /// with a line between them that states how much is omitted. The flag is true if anything is omitted.
    pub fn text(&self, max: usize) -> (String, bool) {
        let decode = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let missing = (self.between > 0).then(|| (self.between, decode(&self.tail)));
        Text { before: decode(&self.head), missing }.cut(max)
    }
}

/// A text that may lack a part in the middle.
#[derive(Debug, Default, PartialEq)]
pub struct Text {
    pub before: String,
    /// Number of missing characters, and the text after them.
    pub missing: Option<(u64, String)>,
}

impl Text {
    /// Returns the last part of the text.
    pub fn end(&mut self) -> &mut String {
        self.missing.as_mut().map_or(&mut self.before, |(_, after)| after)
    }

    /// Reduces the text to its beginning and end, with a line between them that states how much is omitted.
    pub fn cut(self, max: usize) -> (String, bool) {
        let (missing, after) = self.missing.unwrap_or((0, self.before.clone()));
        let length = |text: &str| text.chars().count();
        let count = length(&self.before) as u64 + missing + if missing > 0 { length(&after) as u64 } else { 0 };
        if missing == 0 && count <= max as u64 {
            return (self.before, false);
        }
        let first: String = self.before.chars().take(max / 2).collect();
        let last: String = after.chars().skip(length(&after).saturating_sub(max - max / 2)).collect();
        let left_out = count - (length(&first) + length(&last)) as u64;
        (format!("{first}\n[… {left_out} of {count} characters left out …]\n{last}"), true)
    }
}

/// A buffer that collects the head and the tail of a stream.
#[derive(Debug)]
pub struct HeadTailBuffer {
    /// Number of bytes kept of the beginning, and of the end.
    max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Number of characters and bytes between the two.
    between: u64,
    passed: u64,
    /// True if the beginning is complete.
    later: bool,
}

impl HeadTailBuffer {
    /// Creates a buffer for `bytes` bytes of the beginning and as many of the end.
    pub fn new(bytes: usize) -> Self {
        Self { max: bytes, head: Vec::new(), tail: VecDeque::new(), between: 0, passed: 0, later: false }
    }

    /// Adds output.
    pub fn take(&mut self, data: &[u8]) {
        let room = if self.later { 0 } else { self.max - self.head.len() };
        let (first, rest) = data.split_at(data.len().min(room));
        self.head.extend_from_slice(first);
        self.later |= !rest.is_empty();
        // Bytes that would immediately be pushed out of the tail are only counted.
        let (passing, last) = rest.split_at(rest.len().saturating_sub(self.max));
        let over =
            if passing.is_empty() { (self.tail.len() + last.len()).saturating_sub(self.max) } else { self.tail.len() };
        self.passed += (over + passing.len()) as u64;
        self.between += characters(self.tail.drain(..over)) + characters(passing.iter().copied());
        self.tail.extend(last);
    }

    /// Counts lost bytes as one character each.
    pub fn lose(&mut self, bytes: u64) {
        self.later = true;
        self.passed += self.tail.len() as u64 + bytes;
        self.between += characters(self.tail.drain(..)) + bytes;
    }

    /// Returns both. A character that was cut counts as one between them.
    pub fn head_tail(mut self) -> HeadTail {
        let tail = self.tail.make_contiguous();
        if self.passed == 0 {
            self.head.extend_from_slice(tail);
            return HeadTail { head: self.head, ..HeadTail::default() };
        }
        let begun = begun(&self.head);
        self.head.truncate(self.head.len() - begun);
        let going_on = tail.iter().take(3).take_while(|byte| is_later(**byte)).count();
        let between = (self.between + u64::from(begun > 0)).max(1);
        HeadTail { head: self.head, between, tail: tail[going_on..].to_vec() }
    }
}

/// Returns true if a byte continues a UTF-8 character.
fn is_later(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn characters(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.filter(|byte| !is_later(*byte)).count() as u64
}

/// Returns the number of bytes of an incomplete character at the end.
fn begun(bytes: &[u8]) -> usize {
    let last: Vec<u8> = bytes.iter().rev().take(3).copied().collect();
    let first = last.iter().position(|byte| !is_later(*byte));
    first.map_or(0, |at| if at + 1 < width(last[at]) { at + 1 } else { 0 })
}

/// Returns the length in bytes of the character that starts with this byte.
fn width(first: u8) -> usize {
    match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(buffer: HeadTailBuffer) -> (Vec<u8>, u64, Vec<u8>) {
        let HeadTail { head, between, tail } = buffer.head_tail();
        (head, between, tail)
    }

    fn parts_of(max: usize, pieces: &[&[u8]]) -> (Vec<u8>, u64, Vec<u8>) {
        let mut buffer = HeadTailBuffer::new(4 * max);
        pieces.iter().for_each(|piece| buffer.take(piece));
        parts(buffer)
    }

    #[test]
    fn both_ends_are_kept_and_the_omitted_middle_is_counted() {
        assert_eq!(parts_of(1, &[b"abcdefgh"]), (b"abcdefgh".to_vec(), 0, vec![]));
        assert_eq!(parts_of(1, &[b"abcdefghij"]), (b"abcd".to_vec(), 2, b"ghij".to_vec()));
        assert_eq!(parts_of(1, &[b"ab", b"cdefgh", b"ij"]), (b"abcd".to_vec(), 2, b"ghij".to_vec()));
        let long = "\u{e9}".repeat(1000);
        let odd = format!("a{long}b");
        for text in [&long, &odd] {
            let (head, between, tail) = parts_of(3, &[text.as_bytes()]);
            let (head, tail) = (String::from_utf8(head).expect("text"), String::from_utf8(tail).expect("text"));
            assert!(text.starts_with(&head) && text.ends_with(&tail));
            assert_eq!(
                head.chars().count() as u64 + between + tail.chars().count() as u64,
                text.chars().count() as u64
            );
        }
        let mut lost = HeadTailBuffer::new(4);
        lost.take(b"ab");
        lost.lose(7);
        lost.take(b"yz");
        assert_eq!(parts(lost), (b"ab".to_vec(), 7, b"yz".to_vec()));
    }

    #[test]
    fn a_character_that_never_ends_is_no_reason_to_lose_others() {
        for bytes in [&b"\xf0\x9fa"[..], b"\x80\x80\x80", b"abc", b"", b"\xc3\xa9"] {
            assert_eq!(begun(bytes), 0, "{bytes:?}");
        }
        for (bytes, count) in [(&b"a\xf0\x9f\x98"[..], 3), (b"a\xe2\x82", 2), (b"a\xc3", 1)] {
            assert_eq!(begun(bytes), count, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_it_comes(text in "\\PC{0,80}", max in 1usize..6, cuts in prop::collection::vec(0usize..400, 0..6)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            let (head, between, tail) = parts_of(max, &pieces);
            prop_assert_eq!((head.clone(), between, tail.clone()), parts_of(max, &[bytes]));
            prop_assert!(bytes.starts_with(&head) && bytes.ends_with(&tail));
            let (head, tail) = (String::from_utf8(head).expect("text"), String::from_utf8(tail).expect("text"));
            prop_assert_eq!(head.chars().count() as u64 + between + tail.chars().count() as u64, text.chars().count() as u64);
        }
    }
}

//! Takes secrets out of bytes as they stream by, in the forms in which programs print them.
//!
//! A seat belt: what reverses, splits or encrypts a secret, or writes it in a form that is not looked for, gets through.
//! Where that must not happen, keep no artifacts.

mod forms;
mod matcher;

use std::collections::VecDeque;
use std::sync::Arc;

use matcher::Matcher;
use serde_json::Value;

use crate::{Error, Result};

/// The shortest secret: a shorter one is found everywhere.
const SHORTEST: usize = 4;
/// The longest secret.
const LONGEST: usize = 16 * 1024;
/// The most bytes of all forms of all secrets.
const MOST_BYTES: usize = 2 << 20;

/// Knows the secrets to take out. Shows none of them.
#[derive(Clone)]
pub struct Redactor(Arc<Known>);

struct Known {
    matcher: Matcher,
    /// What replaces each pattern.
    marks: Vec<Vec<u8>>,
}

impl Redactor {
    /// Takes names and values. Each value becomes `[redacted:NAME]`, as it is and in base64 (also within a longer text,
    /// standard and for URLs), percent-encoded, JSON-escaped, with the escapes of Python (of a text and of its bytes) and
    /// of JavaScript, and in hexadecimal digits; so, too, without the white space at its ends, where 4 bytes are left; of a
    /// value of many lines, also each line of 16 bytes and more.
    ///
    /// A name has 1 to 64 letters, digits, `_`, `-` and `.`; a value has 4 bytes to 16 KiB. What cannot be looked for is
    /// an error and not left out: keep no artifact then.
    pub fn new<N: AsRef<str>, V: AsRef<[u8]>>(secrets: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut patterns: Vec<(Vec<u8>, usize)> = Vec::new();
        let mut marks = Vec::new();
        let mut bytes = 0;
        for (name, value) in secrets {
            let value = value.as_ref();
            check(name.as_ref(), value)?;
            for form in forms::of(value) {
                bytes += form.len();
                patterns.push((form, marks.len()));
            }
            if bytes > MOST_BYTES {
                let reason = "together they are too long to look for; keep no artifacts, or pass fewer";
                return Err(Error::Invalid { what: "the secrets to take out", reason });
            }
            marks.push(format!("[redacted:{}]", name.as_ref()).into_bytes());
        }
        Ok(Self(Arc::new(Known { matcher: Matcher::new(&patterns), marks })))
    }

    /// For who has no secrets.
    pub fn none() -> Self {
        Self(Arc::new(Known { matcher: Matcher::new(&[]), marks: Vec::new() }))
    }

    /// Begins a stream.
    pub fn start(&self) -> Redacting {
        Redacting { known: self.0.clone(), state: 0, held: VecDeque::new(), at: 0, found: VecDeque::new(), count: 0 }
    }

    /// Of bytes that are all there.
    pub fn redact(&self, bytes: &[u8]) -> Vec<u8> {
        let mut redacting = self.start();
        let mut out = Vec::new();
        redacting.push(bytes, &mut out);
        redacting.finish(&mut out);
        out
    }

    /// Of a value: each of its texts by itself, names of fields too, before the escapes of JSON come on top of those that
    /// a text has. Says how often something was taken out.
    pub(crate) fn redact_json(&self, value: &Value) -> (Value, u64) {
        let mut count = 0;
        (self.redacted(value, &mut count), count)
    }

    fn redacted(&self, value: &Value, count: &mut u64) -> Value {
        match value {
            Value::String(text) => Value::String(self.redacted_text(text, count)),
            Value::Array(items) => items.iter().map(|item| self.redacted(item, count)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter();
                let redacted =
                    fields.map(|(name, value)| (self.redacted_text(name, count), self.redacted(value, count)));
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }

    fn redacted_text(&self, text: &str, count: &mut u64) -> String {
        let (mut redacting, mut out) = (self.start(), Vec::new());
        redacting.push(text.as_bytes(), &mut out);
        redacting.finish(&mut out);
        *count += redacting.count();
        String::from_utf8_lossy(&out).into_owned()
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.0.marks.len())
    }
}

fn check(name: &str, value: &[u8]) -> Result<()> {
    let plain = name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.'));
    if !plain || name.is_empty() || name.len() > 64 {
        let reason = "it must be 1 to 64 letters, digits, _, - and .";
        return Err(Error::Invalid { what: "the name of a secret", reason });
    }
    if value.len() < SHORTEST || value.len() > LONGEST {
        let reason = "it must have 4 bytes to 16 KiB to be found; keep no artifacts where it is used";
        return Err(Error::Invalid { what: "a secret to take out", reason });
    }
    Ok(())
}

/// One stream. Holds back what may be the beginning of a secret, and never more than the longest form.
pub struct Redacting {
    known: Arc<Known>,
    state: u32,
    /// Bytes that were not given out; the first is at `at`.
    held: VecDeque<u8>,
    at: u64,
    /// Stretches to take out, in order, apart from each other.
    found: VecDeque<Stretch>,
    count: u64,
}

struct Stretch {
    start: u64,
    end: u64,
    secret: usize,
    /// The mark was given out, and the rest of the stretch is only swallowed.
    marked: bool,
}

impl Redacting {
    /// Takes bytes and gives out those of which it is sure.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for byte in bytes {
            self.held.push_back(*byte);
            self.state = self.known.matcher.step(self.state, *byte);
            let end = self.at + self.held.len() as u64;
            if let Some((secret, length)) = self.known.matcher.found(self.state) {
                self.add(end - u64::from(length), end, secret);
            }
            // Nothing that is found later begins before this.
            let sure = end - u64::from(self.known.matcher.depth(self.state));
            self.give_out(sure, out);
        }
    }

    /// Gives out the rest. What comes then is another stream.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.give_out(self.at + self.held.len() as u64, out);
        self.state = 0;
    }

    /// Stretches that were taken out.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Secrets that overlap are taken out together, under the name of the one that began first.
    fn add(&mut self, start: u64, end: u64, secret: usize) {
        let mut new = Stretch { start, end, secret, marked: false };
        while let Some(last) = self.found.pop_back_if(|last| last.end > start) {
            if last.marked || last.start <= new.start {
                new = Stretch { end, ..last };
            }
        }
        self.found.push_back(new);
    }

    fn give_out(&mut self, sure: u64, out: &mut Vec<u8>) {
        while self.at < sure {
            let Some(next) = self.found.front_mut() else {
                self.move_out(sure - self.at, Some(out));
                return;
            };
            if self.at < next.start {
                let plain = next.start.min(sure) - self.at;
                self.move_out(plain, Some(out));
                continue;
            }
            if !next.marked {
                next.marked = true;
                self.count += 1;
                out.extend_from_slice(&self.known.marks[next.secret]);
            }
            let (end, gone) = (next.end, next.end.min(sure) - self.at);
            self.move_out(gone, None);
            if self.at == end {
                self.found.pop_front();
            }
        }
    }

    fn move_out(&mut self, count: u64, out: Option<&mut Vec<u8>>) {
        let bytes = self.held.drain(..count as usize);
        match out {
            Some(out) => out.extend(bytes),
            None => drop(bytes),
        }
        self.at += count;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(redactor: &Redactor, bytes: &[u8]) -> String {
        String::from_utf8(redactor.redact(bytes)).unwrap()
    }

    #[test]
    fn secrets_are_replaced_wherever_they_are() {
        let redactor = Redactor::new([("A", "hunter2"), ("B", "ter2-xyz")]).unwrap();
        for (input, expected) in [
            ("", ""),
            ("hunter", "hunter"),
            ("hunter2", "[redacted:A]"),
            ("xhunter2hunter2y", "x[redacted:A][redacted:A]y"),
            ("huhunter2", "hu[redacted:A]"),
            // No part of an overlapped secret stays.
            ("<hunter2-xyz>", "<[redacted:A]>"),
        ] {
            assert_eq!(text(&redactor, input.as_bytes()), expected, "{input}");
        }
        assert_eq!(text(&Redactor::none(), b"hunter2"), "hunter2");
        assert_eq!(format!("{redactor:?}"), "Redactor(2 secrets)");
    }

    #[test]
    fn texts_in_a_value_are_looked_at_before_they_are_escaped_again() {
        let secret = r"corp\svc-Hunter2xyz";
        let redactor = Redactor::new([("A", secret)]).unwrap();
        let shown = format!("{secret:?}");
        let value = serde_json::json!({ "data": [{ shown.clone(): [shown, 7, null] }], "note": secret });
        let (left, count) = redactor.redact_json(&value);
        let expected = serde_json::json!({
            "data": [{ "\"[redacted:A]\"": ["\"[redacted:A]\"", 7, null] }],
            "note": "[redacted:A]",
        });
        assert_eq!((left, count), (expected, 3));
    }

    #[test]
    fn a_longer_secret_swallows_a_shorter_one_within() {
        let redactor = Redactor::new([("SHORT", "word"), ("LONG", "pass-word-123")]).unwrap();
        assert_eq!(text(&redactor, b"pass-word-123 word"), "[redacted:LONG] [redacted:SHORT]");
        assert_eq!(text(&redactor, b"pass-word-12"), "pass-[redacted:SHORT]-12");
    }

    #[test]
    fn what_repeats_itself_is_held_back_within_bounds() {
        let redactor = Redactor::new([("A", "aaaa")]).unwrap();
        let mut redacting = redactor.start();
        let mut out = Vec::new();
        for _ in 0..10_000 {
            redacting.push(b"aaa", &mut out);
            assert!(redacting.held.len() <= 64 && redacting.found.len() <= 64);
        }
        redacting.finish(&mut out);
        assert_eq!(out, b"[redacted:A]");
    }

    #[test]
    fn what_cannot_be_looked_for_is_an_error() {
        for (name, value) in [("A", "abc"), ("", "abcd"), ("a b", "abcd"), ("A", &"x".repeat(LONGEST + 1))] {
            assert!(Redactor::new([(name, value)]).is_err());
        }
        let many: Vec<(String, Vec<u8>)> = (0..100u8).map(|n| (format!("S{n}"), vec![n; 8000])).collect();
        assert!(Redactor::new(many).is_err());
    }

    proptest! {
        /// However the bytes are cut, no secret is left, and nothing else is gone.
        #[test]
        fn chunks_make_no_difference(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just(b"s3cr3t/+ value".to_vec()), Just(b"s3cr3t/".to_vec()), Just(b"aaab".to_vec()), Just(b"aaa".to_vec()),
                    proptest::collection::vec(any::<u8>(), 0..6)
                ], 0..12),
            cuts in proptest::collection::vec(1usize..9, 1..30),
        ) {
            let redactor = Redactor::new([("A", "s3cr3t/+ value"), ("B", "aaab")]).unwrap();
            let input = parts.concat();
            let whole = redactor.redact(&input);
            let (mut redacting, mut out, mut rest) = (redactor.start(), Vec::new(), &input[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                redacting.push(now, &mut out);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            redacting.finish(&mut out);
            prop_assert_eq!(&out, &whole);
            for secret in [&b"s3cr3t/+ value"[..], b"aaab"] {
                prop_assert!(!whole.windows(secret.len()).any(|window| window == secret));
            }
            let has = |text: &[u8]| input.windows(text.len()).any(|window| window == text);
            if !has(b"s3cr3t/+ value") && !has(b"aaab") && redacting.count() == 0 {
                prop_assert_eq!(whole, input);
            }
        }
    }
}

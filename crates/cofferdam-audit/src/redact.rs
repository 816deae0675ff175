//! Redaction of secrets in streams of bytes, in the encodings in which programs commonly print them.
//!
//! A transformed, split or encrypted secret is not found. If that is not acceptable, store no artifacts.

use std::collections::BTreeSet;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD, Engine};
use cofferdam_util::hex;
use serde_json::Value;

use crate::{Error, Result};

/// The minimum length of a secret in bytes. A shorter one would match everywhere.
const MIN_SECRET: usize = 4;
/// The maximum length of a secret in bytes.
const MAX_SECRET: usize = 16 * 1024;
/// The maximum length of all encodings of all secrets in bytes.
const MAX_ENCODINGS: usize = 2 << 20;
/// The minimum length in bytes of a line that is redacted on its own, in a secret of several lines.
const MIN_LINE: usize = 16;
/// The minimum number of bytes that a stream buffers before it searches them.
const MIN_BATCH: usize = 4 * 1024;

/// A set of secrets to redact. Its debug output contains none of them.
#[derive(Clone)]
pub struct Redactor(Arc<Patterns>);

struct Patterns {
    /// The automaton, or `None` without secrets.
    matcher: Option<AhoCorasick>,
    /// The secret that each pattern belongs to, as an index into `replacements`.
    secrets: Vec<usize>,
    /// The replacement of each secret.
    replacements: Vec<Vec<u8>>,
    /// The length of the longest pattern.
    max_length: usize,
}

impl Redactor {
    /// Creates a redactor from names and values. It replaces each value by `[redacted:NAME]`: the plain value, and the
    /// value in base64 (standard and URL-safe, also within a longer text), in hexadecimal, percent-encoded and
    /// JSON-escaped. The same applies to the value without surrounding white space, if 4 bytes are left, and to each of
    /// its lines of 16 bytes or more.
    ///
    /// A name has 1 to 64 letters, digits, `_`, `-` and `.`. A value has 4 bytes to 16 KiB. Fails for other values
    /// instead of ignoring them; the caller must then store no artifact.
    pub fn new<N: AsRef<str>, V: AsRef<[u8]>>(secrets: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let (mut patterns, mut indices, mut replacements) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        for (name, value) in secrets {
            let (name, value) = (name.as_ref(), value.as_ref());
            check(name, value)?;
            for encoding in encodings(value) {
                bytes += encoding.len();
                patterns.push(encoding);
                indices.push(replacements.len());
            }
            if bytes > MAX_ENCODINGS {
                let reason = "they are too long in total; store no artifacts, or pass fewer secrets";
                return Err(Error::Invalid { what: "the secrets to redact", reason });
            }
            replacements.push(format!("[redacted:{name}]").into_bytes());
        }
        let max_length = patterns.iter().map(Vec::len).max().unwrap_or(0);
        // The automatic choice may be a DFA of more than a gigabyte.
        let builder = AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).to_owned();
        let matcher = match patterns.is_empty() {
            true => None,
            false => Some(builder.build(patterns).map_err(|_| Error::Invalid {
                what: "the secrets to redact",
                reason: "the search automaton cannot be built; store no artifacts, or pass fewer secrets",
            })?),
        };
        Ok(Self(Arc::new(Patterns { matcher, secrets: indices, replacements, max_length })))
    }

    /// Returns a redactor without secrets.
    pub fn none() -> Self {
        Self(Arc::new(Patterns { matcher: None, secrets: Vec::new(), replacements: Vec::new(), max_length: 0 }))
    }

    /// Starts a stream.
    pub fn start(&self) -> RedactionStream {
        RedactionStream { patterns: self.0.clone(), buffer: Vec::new(), redacted_prefix: 0, count: 0 }
    }

    /// Redacts a complete sequence of bytes.
    pub fn redact(&self, bytes: &[u8]) -> Vec<u8> {
        self.redact_counting(bytes, &mut 0)
    }

    /// Redacts each text of a JSON value on its own, including field names, because serialization would escape an
    /// encoded secret once more. Also returns the number of redactions.
    pub(crate) fn redact_json(&self, value: &Value) -> (Value, u64) {
        let mut count = 0;
        (self.redact_value(value, &mut count), count)
    }

    fn redact_value(&self, value: &Value, count: &mut u64) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact_text(text, count)),
            Value::Array(items) => items.iter().map(|item| self.redact_value(item, count)).collect(),
            Value::Object(fields) => {
                let redacted =
                    fields.iter().map(|(name, value)| (self.redact_text(name, count), self.redact_value(value, count)));
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }

    fn redact_text(&self, text: &str, count: &mut u64) -> String {
        String::from_utf8_lossy(&self.redact_counting(text.as_bytes(), count)).into_owned()
    }

    fn redact_counting(&self, bytes: &[u8], count: &mut u64) -> Vec<u8> {
        let (mut stream, mut out) = (self.start(), Vec::new());
        stream.push(bytes, &mut out);
        stream.finish(&mut out);
        *count += stream.count();
        out
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.0.replacements.len())
    }
}

fn check(name: &str, value: &[u8]) -> Result<()> {
    let plain = name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.'));
    if !plain || name.is_empty() || name.len() > 64 {
        let reason = "it must be 1 to 64 letters, digits, _, - and .";
        return Err(Error::Invalid { what: "the name of a secret", reason });
    }
    if value.len() < MIN_SECRET || value.len() > MAX_SECRET {
        let reason = "it must have 4 bytes to 16 KiB to be found; store no artifacts where it is used";
        return Err(Error::Invalid { what: "a secret to redact", reason });
    }
    Ok(())
}

/// A stream of bytes under redaction. Buffers at most about twice the length of the longest encoding.
pub struct RedactionStream {
    patterns: Arc<Patterns>,
    /// Bytes that were not emitted yet.
    buffer: Vec<u8>,
    /// The number of bytes at the start of the buffer that belong to a secret whose replacement was already emitted.
    redacted_prefix: usize,
    count: u64,
}

impl RedactionStream {
    /// Adds bytes, and emits those that no later byte can turn into a secret.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.buffer.extend_from_slice(bytes);
        // An incomplete secret can only start in the last bytes.
        let undecided = self.patterns.max_length.saturating_sub(1);
        if self.buffer.len() >= 2 * undecided + MIN_BATCH || undecided == 0 {
            self.emit(self.buffer.len() - undecided, out);
        }
    }

    /// Emits the remaining bytes. The next byte starts a new stream.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.emit(self.buffer.len(), out);
        self.redacted_prefix = 0;
    }

    /// Returns the number of redactions so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Emits the first `decided` bytes of the buffer. Overlapping secrets are redacted as one, with the name of the
    /// first.
    fn emit(&mut self, decided: usize, out: &mut Vec<u8>) {
        let patterns = Arc::clone(&self.patterns);
        // Bytes from here on were not emitted, except as replacements.
        let mut position = self.redacted_prefix;
        for (start, end, secret) in patterns.find(&self.buffer) {
            if start >= decided {
                break;
            }
            if start >= position {
                out.extend_from_slice(&self.buffer[position..start]);
                out.extend_from_slice(&patterns.replacements[secret]);
                self.count += 1;
            }
            position = position.max(end);
        }
        if position < decided {
            out.extend_from_slice(&self.buffer[position..decided]);
        }
        self.buffer.drain(..decided);
        self.redacted_prefix = position.saturating_sub(decided);
    }
}

impl Patterns {
    /// Finds all secrets, including overlapping ones, sorted by start, the longest first. Returns start, end and secret
    /// of each.
    fn find(&self, bytes: &[u8]) -> Vec<(usize, usize, usize)> {
        let Some(matcher) = &self.matcher else { return Vec::new() };
        let found = matcher.find_overlapping_iter(bytes);
        let mut found: Vec<_> =
            found.map(|found| (found.start(), found.end(), self.secrets[found.pattern().as_usize()])).collect();
        found.sort_unstable_by_key(|(start, end, secret)| (*start, std::cmp::Reverse(*end), *secret));
        found
    }
}

/// Returns all encodings of a secret, of its trimmed value and of its longer lines.
fn encodings(secret: &[u8]) -> BTreeSet<Vec<u8>> {
    let trimmed = match std::str::from_utf8(secret) {
        Ok(text) => text.trim().as_bytes(),
        Err(_) => secret.trim_ascii(),
    };
    let lines = secret.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| line.len() >= MIN_LINE);
    let values = [secret].into_iter().chain([trimmed].into_iter().filter(|value| value.len() >= MIN_SECRET));
    values.chain(lines).collect::<BTreeSet<_>>().into_iter().flat_map(encodings_of_value).collect()
}

fn encodings_of_value(value: &[u8]) -> Vec<Vec<u8>> {
    // Host names are compared and shown in small letters.
    let mut found = vec![value.to_vec(), value.to_ascii_lowercase()];
    found.extend(base64(value));
    let digits = hex::encode(value);
    found.push(digits.to_ascii_uppercase().into_bytes());
    found.push(digits.into_bytes());
    // The characters that RFC 3986, `encodeURIComponent` and Python's `quote` leave unchanged.
    for unreserved in [&b"-_.~"[..], b"-_.!~*'()", b"-_.~/"] {
        let encoded = percent(value, unreserved);
        found.push(encoded.replace("%20", "+").into_bytes());
        found.push(encoded.into_bytes());
    }
    if let Ok(text) = std::str::from_utf8(value) {
        let escaped = json(text);
        found.push(ascii_json(&escaped).into_bytes());
        found.push(escaped.into_bytes());
    }
    found
}

/// Encodes a value on its own and at each of the three alignments within a longer text. In the latter, characters that
/// also encode bits of neighbouring bytes are omitted.
fn base64(value: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for engine in [BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD] {
        found.push(engine.encode(value).into_bytes());
        for before in 0..3 {
            let padded = [&[0; 2][..before], value].concat();
            let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
            let inside = &engine.encode(&padded).into_bytes()[first..last];
            // A shorter pattern would match by chance.
            if inside.len() >= 4 {
                found.push(inside.to_vec());
            }
        }
    }
    found
}

fn percent(value: &[u8], unreserved: &[u8]) -> String {
    let encode = |byte: &u8| match byte {
        plain if plain.is_ascii_alphanumeric() || unreserved.contains(plain) => char::from(*plain).to_string(),
        other => format!("%{other:02X}"),
    };
    value.iter().map(encode).collect()
}

/// Escapes a text as within the quotes of a JSON string.
fn json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Also escapes characters that are not printable ASCII.
fn ascii_json(escaped: &str) -> String {
    let mut units = [0; 2];
    let mut escape = |c: char| match c {
        ' '..='~' => c.to_string(),
        other => other.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    escaped.chars().map(&mut escape).collect()
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
    use proptest::prelude::*;

    use super::*;

    fn text(redactor: &Redactor, bytes: &[u8]) -> String {
        String::from_utf8(redactor.redact(bytes)).unwrap()
    }

    fn assert_redacted(redactor: &Redactor, input: &str, encoding: &str) {
        let left = text(redactor, input.as_bytes());
        assert!(left.contains("[redacted:A]") && !left.contains(encoding), "{input} became {left}");
    }

    #[test]
    fn secrets_are_replaced_at_any_position() {
        let redactor = Redactor::new([("A", "hunter2"), ("B", "ter2-xyz")]).unwrap();
        for (input, expected) in [
            ("", ""),
            ("hunter", "hunter"),
            ("hunter2", "[redacted:A]"),
            ("xhunter2hunter2y", "x[redacted:A][redacted:A]y"),
            ("huhunter2", "hu[redacted:A]"),
            // No part of an overlapped secret remains.
            ("<hunter2-xyz>", "<[redacted:A]>"),
        ] {
            assert_eq!(text(&redactor, input.as_bytes()), expected, "{input}");
        }
        assert_eq!(text(&Redactor::none(), b"hunter2"), "hunter2");
        assert_eq!(format!("{redactor:?}"), "Redactor(2 secrets)");
    }

    #[test]
    fn a_longer_secret_includes_a_shorter_one_within() {
        let redactor = Redactor::new([("SHORT", "word"), ("LONG", "pass-word-123")]).unwrap();
        assert_eq!(text(&redactor, b"pass-word-123 word"), "[redacted:LONG] [redacted:SHORT]");
        assert_eq!(text(&redactor, b"pass-word-12"), "pass-[redacted:SHORT]-12");
    }

    /// Encodings made by `json.dumps`, `urllib.parse.quote`, `quote_plus`, `encodeURIComponent`, `base64` and `xxd -p`.
    ///
    /// Promise (Static analysis and audit log): Secrets in base64, hexadecimal, percent and JSON encoding are redacted.
    #[test]
    fn encodings_of_other_programs_are_redacted() {
        let redactor = Redactor::new([("A", "p\"a/ß+\\w d\n1!")]).unwrap();
        for encoding in [
            "p\"a/ß+\\w d\n1!",
            r#"p\"a/\u00df+\\w d\n1!"#,
            r#"p\"a/ß+\\w d\n1!"#,
            "p%22a%2F%C3%9F%2B%5Cw%20d%0A1%21",
            "p%22a%2F%C3%9F%2B%5Cw%20d%0A1!",
            "p%22a/%C3%9F%2B%5Cw%20d%0A1%21",
            "p%22a%2F%C3%9F%2B%5Cw+d%0A1%21",
            "cCJhL8OfK1x3IGQKMSE=",
            "cCJhL8OfK1x3IGQKMSE",
            "7022612fc39f2b5c7720640a3121",
            "7022612FC39F2B5C7720640A3121",
        ] {
            assert_redacted(&redactor, &format!("<{encoding}>"), encoding);
        }
        let redactor = Redactor::new([("A", "smile😀\u{7f}\u{1b}")]).unwrap();
        assert_redacted(&redactor, r"<smile\ud83d\ude00\u007f\u001b>", "smile");
    }

    #[test]
    fn texts_in_a_json_value_are_redacted_before_they_are_escaped_again() {
        let secret = r"corp\svc-Hunter2xyz";
        let redactor = Redactor::new([("A", secret)]).unwrap();
        let shown = format!("{secret:?}");
        let value = serde_json::json!({ "data": [{ shown.clone(): [shown, 7, null] }], "note": secret });
        let expected = serde_json::json!({
            "data": [{ "\"[redacted:A]\"": ["\"[redacted:A]\"", 7, null] }],
            "note": "[redacted:A]",
        });
        assert_eq!(redactor.redact_json(&value), (expected, 3));
    }

    #[test]
    fn lines_of_a_long_secret_are_redacted_on_their_own() {
        let redactor = Redactor::new([("A", "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nshort\n")]).unwrap();
        assert_redacted(&redactor, "x MIIEvQIBADANBgkq y", "MIIEvQIBADANBgkq");
        assert_eq!(redactor.redact(b"short"), b"short");
    }

    /// Values are trimmed by programs that read them from a file.
    ///
    /// Promise (Static analysis and audit log): A secret without the white space at its ends is redacted.
    #[test]
    fn a_value_without_the_white_space_at_its_ends_is_found() {
        for (secret, trimmed) in [
            ("hunter2-4711\n", "hunter2-4711"),
            (" \thunter2-4711 \r\n", "hunter2-4711"),
            ("\u{a0}hunter\u{3000}4711\u{2003}\x0b", "hunter\u{3000}4711"),
        ] {
            let redactor = Redactor::new([("A", secret)]).unwrap();
            assert_redacted(&redactor, &format!("Bearer {trimmed} x"), trimmed);
            assert_eq!(redactor.redact(format!("<{secret}>").as_bytes()), b"<[redacted:A]>");
            for shown in [trimmed, secret] {
                assert_redacted(&redactor, &BASE64_STANDARD.encode(shown), &BASE64_STANDARD.encode(trimmed));
                assert_redacted(&redactor, &json(shown), trimmed);
            }
        }
        // A trimmed value has the minimum length of any secret.
        let redactor = Redactor::new([("A", "abc\n")]).unwrap();
        assert_eq!(redactor.redact(b"<abc\n><abc>"), b"<[redacted:A]><abc>");
    }

    #[test]
    fn repetition_is_buffered_within_bounds() {
        let redactor = Redactor::new([("A", "aaaa")]).unwrap();
        let (mut stream, mut out) = (redactor.start(), Vec::new());
        for _ in 0..10_000 {
            stream.push(b"aaa", &mut out);
            assert!(stream.buffer.len() <= 2 * MIN_BATCH);
        }
        stream.finish(&mut out);
        assert_eq!(out, b"[redacted:A]");
        assert_eq!(stream.count(), 1);
    }

    #[test]
    fn unsearchable_secrets_are_refused() {
        for (name, value) in [("A", "abc"), ("", "abcd"), ("a b", "abcd"), ("A", &"x".repeat(MAX_SECRET + 1))] {
            assert!(Redactor::new([(name, value)]).is_err());
        }
        let many: Vec<(String, Vec<u8>)> = (0..100u8).map(|n| (format!("S{n}"), vec![n; 8000])).collect();
        assert!(Redactor::new(many).is_err());
    }

    proptest! {
        /// No cut of the stream leaves a secret or changes the result.
        ///
        /// Promise (Static analysis and audit log): A secret that spans pieces of a stream is redacted.
        #[test]
        fn secrets_across_piece_boundaries_are_redacted(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just(b"s3cr3t/+ value".to_vec()), Just(b"s3cr3t/".to_vec()), Just(b"aaab".to_vec()),
                    Just(b"aaa".to_vec()), proptest::collection::vec(any::<u8>(), 0..6)
                ], 0..12),
            filler in 0..MIN_BATCH + 200,
            cuts in proptest::collection::vec(1usize..600, 1..30),
        ) {
            let redactor = Redactor::new([("A", "s3cr3t/+ value"), ("B", "aaab")]).unwrap();
            let input = [vec![b'.'; filler], parts.concat()].concat();
            let whole = redactor.redact(&input);
            let (mut stream, mut out, mut rest) = (redactor.start(), Vec::new(), &input[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                stream.push(now, &mut out);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            stream.finish(&mut out);
            prop_assert_eq!(&out, &whole);
            for secret in [&b"s3cr3t/+ value"[..], b"aaab"] {
                prop_assert!(!whole.windows(secret.len()).any(|window| window == secret));
            }
            if stream.count() == 0 {
                prop_assert_eq!(whole, input);
            }
        }

        /// Within a longer base64 text, only the characters at the borders of a secret remain.
        #[test]
        fn base64_of_a_longer_text_is_redacted(
            secret in proptest::collection::vec(any::<u8>(), 8..40),
            before in proptest::collection::vec(any::<u8>(), 0..7),
            after in proptest::collection::vec(any::<u8>(), 0..7),
        ) {
            let redactor = Redactor::new([("A", &secret)]).unwrap();
            let all = [&before[..], &secret, &after].concat();
            for input in [BASE64_STANDARD.encode(&all), BASE64_URL_SAFE.encode(&all)] {
                let left = text(&redactor, input.as_bytes());
                prop_assert!(left.contains("[redacted:A]"), "{} became {}", input, left);
                prop_assert!(left.len() <= input.len() - (secret.len() - 2) * 4 / 3 + "[redacted:A]".len() + 4);
            }
        }
    }
}

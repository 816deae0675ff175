//! Scrubbing of secret values from streams of bytes, without a change of their length.
//!
//! A value is found as it is, and in base64, percent-encoded and escaped for JSON. A server that answers with another
//! form of it gives it to the sandbox. The automaton has the values in memory that is not zeroed when it is freed, as
//! the buffers of connections have them.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD, Engine};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use zeroize::{Zeroize, Zeroizing};

/// The maximum length of all forms of all values.
const MAX_FORMS: usize = 1 << 20;
/// Replaces each byte of a value. It is valid in headers and in texts of JSON.
const MASK: u8 = b'*';
/// Characters that are percent-encoded: all but those that RFC 3986 calls unreserved.
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Characters that `encodeURIComponent` of JavaScript encodes, and `quote` of Python.
const ENCODED: [&AsciiSet; 3] =
    [RESERVED, &RESERVED.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')'), &RESERVED.remove(b'/')];

/// The values to find.
pub struct Values {
    automaton: NFA,
    start: StateID,
    /// The number of bytes to hold back in each state: the length of a value's beginning, or 0 after a complete value.
    depths: HashMap<StateID, usize>,
}

/// A form of a value, which is zeroed on drop.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Form(Vec<u8>);

impl AsRef<[u8]> for Form {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Form {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Replaces values in one stream. Holds back a beginning of a value until its end shows that it is another text.
pub struct Scrubber {
    values: Arc<Values>,
    state: StateID,
    held: Vec<u8>,
}

impl Values {
    /// Prepares to find these values. Returns `None` if they are too long in total.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let forms: BTreeSet<Form> = values.into_iter().flat_map(forms).collect();
        if forms.iter().map(|form| form.0.len()).sum::<usize>() > MAX_FORMS {
            return None;
        }
        let automaton = NFA::builder().build(&forms).ok()?;
        let start = automaton.start_state(Anchored::No).ok()?;
        let mut values = Self { automaton, start, depths: HashMap::from([(start, 0)]) };
        for form in &forms {
            let mut state = start;
            for (index, byte) in form.0.iter().enumerate() {
                state = values.automaton.next_state(Anchored::No, state, *byte);
                let depth = index + 1;
                // After a complete value, all bytes are replaced already.
                values.depths.insert(state, if values.found(state) == Some(depth) { 0 } else { depth });
            }
        }
        Some(values)
    }

    /// Replaces the values in a whole text. Returns `None` if there are none.
    pub fn scrub(self: &Arc<Self>, text: &[u8]) -> Option<Vec<u8>> {
        let mut scrubber = Scrubber::new(self);
        let mut scrubbed = scrubber.push(text);
        scrubbed.extend(scrubber.finish());
        (scrubbed != text).then_some(scrubbed)
    }

    /// Returns the length of the longest value that ends in this state.
    fn found(&self, state: StateID) -> Option<usize> {
        if !self.automaton.is_match(state) {
            return None;
        }
        let matches = 0..self.automaton.match_len(state);
        matches.map(|index| self.automaton.pattern_len(self.automaton.match_pattern(state, index))).max()
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Values(hidden)")
    }
}

impl Scrubber {
    /// Starts a stream.
    pub fn new(values: &Arc<Values>) -> Self {
        Self { values: Arc::clone(values), state: values.start, held: Vec::new() }
    }

    /// Adds bytes. Returns those that no later byte can make a part of a value.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.held);
        bytes.reserve_exact(chunk.len());
        for byte in chunk {
            bytes.push(*byte);
            self.state = self.values.automaton.next_state(Anchored::No, self.state, *byte);
            if let Some(length) = self.values.found(self.state) {
                let start = bytes.len().saturating_sub(length);
                bytes[start..].fill(MASK);
            }
        }
        // A state that is no beginning of a value does not exist. If it did, everything would be held back.
        let depth = self.values.depths.get(&self.state).copied().unwrap_or(bytes.len());
        self.held = bytes.split_off(bytes.len().saturating_sub(depth));
        bytes
    }

    /// Returns the bytes that were held back, at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        self.state = self.values.start;
        std::mem::take(&mut self.held)
    }
}

/// A body without values. Leaves out trailers.
pub struct Scrubbed<B> {
    body: B,
    scrubber: Scrubber,
    ended: bool,
}

impl<B> Scrubbed<B> {
    /// Scrubs a body.
    pub fn new(body: B, values: &Arc<Values>) -> Self {
        Self { body, scrubber: Scrubber::new(values), ended: false }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Scrubbed<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        while !self.ended {
            let scrubbed = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.scrubber.push(&data),
                    Err(_trailers) => continue,
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.ended = true;
                    self.scrubber.finish()
                }
            };
            if !scrubbed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(scrubbed.into()))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.body.is_end_stream() && self.scrubber.held.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.body.size_hint(), self.scrubber.held.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(inner.lower() + held);
        hint
    }
}

/// Returns all forms of a value. No buffer grows, which would leave copies behind.
fn forms(value: &[u8]) -> Vec<Form> {
    let mut found = vec![Form(value.to_vec())];
    let mut add = |form: &[u8]| found.push(Form(form.to_vec()));
    for engine in [BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD] {
        for before in 0..3 {
            // Characters that encode bits of neighbouring bytes too are left out.
            let padded = Zeroizing::new([&[0; 2][..before], value].concat());
            let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
            add(&Zeroizing::new(engine.encode(&*padded)).as_bytes()[first..last]);
        }
    }
    for set in ENCODED {
        let mut encoded = Zeroizing::new(String::with_capacity(3 * value.len()));
        encoded.extend(percent_encode(value, set));
        let mut plus = Zeroizing::new(String::with_capacity(encoded.len()));
        for (index, part) in encoded.split("%20").enumerate() {
            plus.push_str(if index == 0 { "" } else { "+" });
            plus.push_str(part);
        }
        for form in [&plus, &Zeroizing::new(lower_digits(&encoded)), &encoded] {
            add(form.as_bytes());
        }
    }
    for escaped in [&b"\"\\"[..], b"\"\\/"] {
        let mut form = Zeroizing::new(Vec::with_capacity(2 * value.len()));
        for byte in value {
            form.extend(escaped.contains(byte).then_some(b'\\'));
            form.push(*byte);
        }
        add(&form);
    }
    found
}

/// Writes the digits of percent-encoded bytes in lower case.
fn lower_digits(encoded: &str) -> String {
    let mut digits = 0;
    let lower = |c: char| match c {
        '%' => {
            digits = 2;
            c
        }
        _ if digits > 0 => {
            digits -= 1;
            c.to_ascii_lowercase()
        }
        _ => c,
    };
    let mut written = String::with_capacity(encoded.len());
    written.extend(encoded.chars().map(lower));
    written
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "s3cr/t+va \"lue%";

    fn values(texts: &[&str]) -> Arc<Values> {
        Arc::new(Values::new(texts.iter().map(|text| text.as_bytes())).unwrap())
    }

    fn scrub(values: &Arc<Values>, text: &str) -> String {
        String::from_utf8(values.scrub(text.as_bytes()).unwrap_or_else(|| text.into())).unwrap()
    }

    #[test]
    fn values_are_masked_in_every_form_and_at_every_position() {
        let values = values(&[VALUE]);
        let encoded = |text: &str| BASE64_STANDARD_NO_PAD.encode(text);
        for (text, left) in [
            (VALUE.to_owned(), ""),
            ("s3cr%2Ft%2Bva%20%22lue%25".to_owned(), ""),
            ("s3cr%2ft%2bva%20%22lue%25".to_owned(), ""),
            ("s3cr%2Ft%2Bva+%22lue%25".to_owned(), ""),
            (r#"s3cr/t+va \"lue%"#.to_owned(), ""),
            (r#"s3cr\/t+va \"lue%"#.to_owned(), ""),
            ("s3cr/t+va".to_owned(), "s3cr/t+va"),
        ] {
            let expected = if left.is_empty() { "*".repeat(text.len()) } else { left.to_owned() };
            assert_eq!(scrub(&values, &format!("<{text}>")), format!("<{expected}>"));
        }
        for user in ["", "u", "us", "use"] {
            let scrubbed = scrub(&values, &encoded(&format!("{user}:{VALUE}")));
            // The characters at the edges have bits of neighbours.
            let shown = scrubbed.trim_start_matches(|c| c != '*').trim_end_matches(|c| c != '*');
            assert!(shown.bytes().all(|byte| byte == MASK) && shown.len() >= VALUE.len(), "{scrubbed}");
        }
    }

    #[test]
    fn overlapping_values_are_masked_as_one() {
        let values = values(&["abcdefgh", "efghijkl", "cdefghij"]);
        assert_eq!(scrub(&values, "<abcdefghijkl>"), "<************>");
        assert_eq!(scrub(&values, "abcdefgabcdefgh"), "abcdefg********");
        assert_eq!(scrub(&values, "efghijk"), "efghijk");
    }

    #[test]
    fn only_beginnings_of_values_are_held_back() {
        let mut scrubber = Scrubber::new(&values(&["abcdefgh"]));
        assert_eq!(scrubber.push(b"data: abcdefgh\n\n"), b"data: ********\n\n");
        assert_eq!(scrubber.push(b"data: abc"), b"data: ");
        assert_eq!(scrubber.push(b"x"), b"abcx");
        assert_eq!(scrubber.push(b"abcdefgh"), b"********");
        assert_eq!(scrubber.push(b"abcd"), b"");
        assert_eq!(scrubber.finish(), b"abcd");
        assert!(Values::new([&[b'x'; MAX_FORMS + 1][..]]).is_none());
    }

    proptest! {
        /// Promise (Network): The value of a secret never reaches a sandbox in a response, however it is cut in pieces.
        #[test]
        fn any_chunking_gives_the_same_text_without_the_value(
            parts in proptest::collection::vec("(s3cr/t\\+va \"lue%|s3cr/t\\+va|s3cr|ababa|abab|[a-c]{0,3})", 0..12),
            cuts in proptest::collection::vec(1_usize..9, 1..20),
        ) {
            let text = parts.concat();
            let values = values(&[VALUE, "abababac", "babacaba"]);
            let whole = scrub(&values, &text);
            let (mut scrubber, mut left, mut chunked) = (Scrubber::new(&values), text.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                let (chunk, rest) = left.split_at((*cut).min(left.len()));
                chunked.extend(scrubber.push(chunk));
                prop_assert!(scrubber.held.len() < 3 * VALUE.len());
                left = rest;
                if left.is_empty() {
                    break;
                }
            }
            chunked.extend(scrubber.finish());
            prop_assert_eq!(&chunked, whole.as_bytes());
            prop_assert_eq!(whole.len(), text.len());
            prop_assert!(!whole.contains(VALUE) && !whole.contains("abababac") && !whole.contains("babacaba"));
        }
    }
}

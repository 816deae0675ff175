//! Strings that may come from inside a sandbox, made safe for a line of the log and for a terminal.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The mark at the end of a truncated text.
const CUT: char = '…';

/// A text of at most `MAX` bytes in which everything but letters, digits and printable ASCII is escaped.
///
/// A backslash becomes `\\`, a character that is neither printable ASCII nor a letter or digit becomes `\u{…}`, and an
/// invalid UTF-8 byte becomes `\xNN`. A text that is too long is cut between two of these and ends with `…`, which
/// otherwise never occurs. The same input therefore gives the same text, and no text moves a cursor, breaks a line or
/// changes the writing direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// Escapes and truncates a text.
    pub fn new(raw: impl AsRef<[u8]>) -> Self {
        let mut text = String::new();
        // The last position at which the truncation mark still fits.
        let mut cut = 0;
        for piece in raw.as_ref().utf8_chunks() {
            let valid = piece.valid().chars().map(escaped);
            let invalid = piece.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
            for part in valid.chain(invalid) {
                if text.len() + part.len() > MAX {
                    text.truncate(cut);
                    text.push(CUT);
                    return Self(text);
                }
                text.push_str(&part);
                if text.len() + CUT.len_utf8() <= MAX {
                    cut = text.len();
                }
            }
        }
        Self(text)
    }

    /// Returns the escaped text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the text was truncated.
    pub fn is_cut(&self) -> bool {
        self.0.ends_with(CUT)
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const MAX: usize> From<&str> for Text<MAX> {
    fn from(raw: &str) -> Self {
        Self::new(raw)
    }
}

fn escaped(c: char) -> String {
    match c {
        '\\' => "\\\\".to_owned(),
        ' '..='~' => c.to_string(),
        _ if !c.is_ascii() && c.is_alphanumeric() => c.to_string(),
        _ => format!("\\u{{{:x}}}", u32::from(c)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn non_printable_text_is_escaped() {
        for (raw, expected) in [
            (&b"plain name.txt"[..], "plain name.txt"),
            (b"a\nb\x1b[31m", "a\\u{a}b\\u{1b}[31m"),
            ("größe\u{202e}x\u{2028}\u{85}".as_bytes(), "größe\\u{202e}x\\u{2028}\\u{85}"),
            (b"\xff\\x", "\\xff\\\\x"),
            ("…".as_bytes(), "\\u{2026}"),
        ] {
            assert_eq!(Text::<100>::new(raw).as_str(), expected);
        }
        let cut = Text::<8>::new("0123456789");
        assert_eq!(cut.as_str(), "01234…");
        assert!(cut.is_cut() && !Text::<8>::new("01234567").is_cut());
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_bounded_printable_line(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = Text::<64>::new(&raw);
            prop_assert!(text.as_str().len() <= 64);
            prop_assert!(text.as_str().chars().all(|c| (' '..='~').contains(&c) || c.is_alphanumeric() || c == CUT));
        }
    }
}

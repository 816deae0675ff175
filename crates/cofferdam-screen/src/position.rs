//! Lines and columns of bytes of the code, as an editor shows them.

use crate::text::printable;

/// The starts of all lines of a text.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

/// Line and column, both starting at 1. A column is a character (a Unicode scalar value), not a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub line: usize,
    pub column: usize,
}

impl<'a> Lines<'a> {
    /// Finds all lines, with the line ends of the language.
    pub fn new(text: &'a str, is_end: fn(&str) -> usize) -> Self {
        let mut starts = vec![0];
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let length = is_end(rest);
            at += length.max(rest.chars().next().map_or(1, char::len_utf8));
            if length > 0 {
                starts.push(at);
            }
        }
        Self { text, starts }
    }

    /// Returns the position of a byte. A byte after the end of the text has the position of the end.
    pub fn position(&self, byte: usize) -> Position {
        let byte = floor(self.text, byte);
        let line = self.starts.partition_point(|start| *start <= byte).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        Position { line, column: self.text[start..byte].chars().count() + 1 }
    }
}

/// Returns the length of the line end at the start of this text, or 0.
pub(crate) fn python_line_end(rest: &str) -> usize {
    match rest.as_bytes() {
        [b'\r', b'\n', ..] => 2,
        [b'\r' | b'\n', ..] => 1,
        _ => 0,
    }
}

/// Returns the length of a line end for JavaScript, which has two more kinds of line ends.
pub(crate) fn javascript_line_end(rest: &str) -> usize {
    match rest.as_bytes() {
        [0xE2, 0x80, 0xA8 | 0xA9, ..] => 3,
        _ => python_line_end(rest),
    }
}

/// Returns the nearest character boundary at or before a byte.
pub(crate) fn floor(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

/// Returns a short piece of the code that a terminal can show: one line without control or direction characters.
pub(crate) fn excerpt(text: &str, start: usize, end: usize, max: usize) -> String {
    let start = floor(text, start);
    let piece = &text[start..floor(text, end).max(start)];
    let line = piece.split(['\n', '\r', '\u{2028}', '\u{2029}']).next().unwrap_or_default();
    let mut shown = printable(line, max);
    if line.len() < piece.len() && !shown.ends_with('…') {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let text = "a\nöß = 1\r\n\r日本x";
        let lines = Lines::new(text, python_line_end);
        let at = |needle: &str| lines.position(text.find(needle).unwrap());
        assert_eq!(at("a"), Position { line: 1, column: 1 });
        assert_eq!(at("= 1"), Position { line: 2, column: 4 });
        assert_eq!(at("x"), Position { line: 4, column: 3 });
        assert_eq!(lines.position(usize::MAX), Position { line: 4, column: 4 });
    }

    #[test]
    fn lines_of_javascript_end_at_more() {
        assert_eq!(Lines::new("a\u{2028}b", javascript_line_end).position(4), Position { line: 2, column: 1 });
        assert_eq!(Lines::new("a\u{2028}b", python_line_end).position(4).line, 1);
    }

    #[test]
    fn excerpts_hide_nothing_and_move_no_cursor() {
        assert_eq!(excerpt("eval(\u{1b}[2J)\nnext", 0, 16, 80), "eval(\\u{1b}[2J)…");
        assert_eq!(excerpt("a\u{202e}b", 0, 5, 80), "a\\u{202e}b");
        assert_eq!(excerpt("abcdef", 1, 6, 3), "bcd…");
    }
}

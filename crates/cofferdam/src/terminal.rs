//! A filter that makes guest output harmless to terminals.
//!
//! A terminal executes control sequences: it retitles windows, writes the clipboard, answers queries as if the user had
//! typed the answer. So the filter passes only printable text, newline, carriage return, tab, backspace and complete
//! colour sequences (`ESC [ digits m`). It prints everything else as a visible escape such as `\x1b`.
//!
//! ```text
//! text --ESC--> escape --[--> colour --digits ; :--> colour --m--> text (passed complete)
//!                  \-- anything else --> text (escaped)  \-- anything else --> text (escaped)
//! ```

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

/// Maximum length of a colour sequence that passes, in bytes after `ESC [`.
const MAX_COLOUR: usize = 64;

/// A filter for one stream.
#[derive(Debug, Default)]
pub struct TerminalFilter {
    /// An incomplete character or colour sequence.
    partial: Vec<u8>,
    /// True if a colour was set and not reset.
    coloured: bool,
}

impl TerminalFilter {
    /// Filters the next chunk. Returns the text to print.
    pub fn feed(&mut self, chunk: &[u8]) -> String {
        let mut input = std::mem::take(&mut self.partial);
        input.extend_from_slice(chunk);
        let mut out = String::with_capacity(input.len());
        let mut rest = input.as_slice();
        while !rest.is_empty() {
            match self.step(rest, &mut out) {
                Some(used) => rest = &rest[used..],
                None => break,
            }
        }
        self.partial = rest.to_vec();
        out
    }

    /// Returns the text to print at the end: buffered bytes, and a reset if a colour is still set.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        for byte in std::mem::take(&mut self.partial) {
            if byte.is_ascii() && !byte.is_ascii_control() { out.push(byte.into()) } else { show_byte(byte, &mut out) }
        }
        if std::mem::take(&mut self.coloured) {
            out.push_str("\x1b[0m");
        }
        out
    }

    /// Processes the beginning of `input`, which is not empty. Returns the number of bytes used, or `None` if more are
    /// needed.
    fn step(&mut self, input: &[u8], out: &mut String) -> Option<usize> {
        if input[0] == 0x1b {
            return self.escape(input, out);
        }
        let valid = match std::str::from_utf8(input) {
            Ok(text) => text,
            Err(error) if error.valid_up_to() > 0 => {
                std::str::from_utf8(&input[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(error) => {
                let bad = error.error_len()?;
                input[..bad].iter().for_each(|byte| show_byte(*byte, out));
                return Some(bad);
            }
        };
        let text = valid.split('\x1b').next().unwrap_or_default();
        text.chars().for_each(|c| show_char(c, out));
        Some(text.len())
    }

    fn escape(&mut self, input: &[u8], out: &mut String) -> Option<usize> {
        if let Some(parameters) = input.strip_prefix(b"\x1b[") {
            let digits = parameters.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b';' | b':')).count();
            match parameters.get(digits) {
                _ if digits > MAX_COLOUR => {}
                None => return None,
                Some(b'm') => {
                    let sequence = &input[..digits + 3];
                    self.coloured = !matches!(&sequence[2..], b"m" | b"0m");
                    out.extend(sequence.iter().map(|byte| char::from(*byte)));
                    return Some(sequence.len());
                }
                Some(_) => {}
            }
        } else if input.len() == 1 {
            return None;
        }
        show_byte(0x1b, out);
        Some(1)
    }
}

fn show_byte(byte: u8, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\x{byte:02x}");
}

fn show_char(c: char, out: &mut String) {
    match c {
        '\n' | '\r' | '\t' | '\u{8}' => out.push(c),
        _ if is_harmful(c) => escape_char(c, out),
        _ => out.push(c),
    }
}

fn escape_char(c: char, out: &mut String) {
    if c.is_ascii() {
        show_byte(c as u8, out);
    } else {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    }
}

/// Returns true for control characters of both sets, and for characters that change the text direction and so can hide
/// text.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text as one line that is safe to print: control characters, including newlines, are escaped.
pub fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            _ if is_harmful(c) => escape_char(c, &mut out),
            _ => out.push(c),
        }
    }
    out
}

/// Returns JSON text that is safe to print. Harmful characters occur only in strings, where JSON has escapes for them.
pub fn safe_json(text: String) -> String {
    if !text.contains(is_harmful) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    let _ = escape_json(&text, &mut |piece| {
        out.push_str(piece);
        Ok(())
    });
    out
}

/// Emits JSON text in pieces, with harmful characters escaped.
fn escape_json(text: &str, put: &mut dyn FnMut(&str) -> io::Result<()>) -> io::Result<()> {
    let mut rest = text;
    while let Some(at) = rest.find(|c| is_harmful(c) && c != '\n') {
        let (good, bad) = rest.split_at(at);
        let mut characters = bad.chars();
        let number = characters.next().map_or(0, u32::from);
        put(good)?;
        put(&format!("\\u{number:04x}"))?;
        rest = characters.as_str();
    }
    put(rest)
}

/// Writes JSON like [`safe_json`], without building the text in memory.
pub fn write_safe_json(value: &dyn fmt::Display, to: impl io::Write) -> io::Result<()> {
    struct Escaped<W: io::Write> {
        to: io::BufWriter<W>,
        result: io::Result<()>,
    }

    impl<W: io::Write> fmt::Write for Escaped<W> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.result = escape_json(text, &mut |piece| self.to.write_all(piece.as_bytes()));
            self.result.as_ref().map_err(|_| fmt::Error).copied()
        }
    }

    let mut escaped = Escaped { to: io::BufWriter::new(to), result: Ok(()) };
    // `result` holds the error.
    let _ = writeln!(escaped, "{value:#}");
    escaped.result?;
    escaped.to.flush()
}

/// Returns an age in its largest unit.
pub fn ago(age: std::time::Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn show(chunks: &[&[u8]]) -> String {
        let mut filter = TerminalFilter::default();
        let mut out: String = chunks.iter().map(|chunk| filter.feed(chunk)).collect();
        out.push_str(&filter.finish());
        out
    }

    #[test]
    fn text_and_colours_pass() {
        for text in
            ["plain\r\n\ttext\u{8}", "é€𝄞 日本", "\x1b[31mred\x1b[0m", "\x1b[38;2;1;2;3mx\x1b[m", "\x1b[4:3mx\x1b[0m"]
        {
            assert_eq!(show(&[text.as_bytes()]), text);
        }
    }

    #[test]
    fn everything_else_is_shown() {
        for (input, shown) in [
            (&b"\x1b]0;title\x07"[..], "\\x1b]0;title\\x07"),
            (b"\x1b]52;c;aGk=\x1b\\", "\\x1b]52;c;aGk=\\x1b\\"),
            (b"\x1bP+q\x1b\\", "\\x1bP+q\\x1b\\"),
            (b"\x1b[6n", "\\x1b[6n"),
            (b"\x1b[2J", "\\x1b[2J"),
            (b"\x1b[?25l", "\\x1b[?25l"),
            (b"\x1b[>4;1m", "\\x1b[>4;1m"),
            (b"\x1bc", "\\x1bc"),
            (b"\x1b\x1b[31m", "\\x1b\x1b[31m\x1b[0m"),
            (b"\x1b[3\x1b[31m", "\\x1b[3\x1b[31m\x1b[0m"),
            (b"\x9b6n", "\\x9b6n"),
            ("\u{9b}6n".as_bytes(), "\\u{9b}6n"),
            (b"\x00\x7f\x0c", "\\x00\\x7f\\x0c"),
            ("\u{202e}abc".as_bytes(), "\\u{202e}abc"),
            (b"\xff\xc3", "\\xff\\xc3"),
            (b"\x1b", "\\x1b"),
            (b"\x1b[31", "\\x1b[31"),
        ] {
            assert_eq!(show(&[input]), shown, "{input:?}");
        }
        let long = format!("\x1b[{}m", "1".repeat(MAX_COLOUR + 1));
        assert!(!show(&[long.as_bytes()]).contains('\x1b'));
    }

    #[test]
    fn sequences_split_over_chunks_are_joined() {
        assert_eq!(show(&[b"\x1b", b"[3", b"1m", b"x\xc3", b"\xa9\x1b[0m"]), "\x1b[31mx\u{e9}\x1b[0m");
        assert_eq!(show(&[b"\x1b", b"]0;x"]), "\\x1b]0;x");
    }

    #[test]
    fn our_own_lines_and_json_hold_no_controls() {
        assert_eq!(one_line("a\nb\x1b[31m\u{9b}"), "a\\nb\\x1b[31m\\u{9b}");
        let value = serde_json::json!({"a": "\u{9b}\u{7f}\u{1b}\u{202e}é"});
        let text = safe_json(value.to_string());
        assert_eq!(text, r#"{"a":"\u009b\u007f\u001b\u202eé"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    /// Generates bytes that form control sequences more often than random bytes.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            prop::sample::select(vec![
                "\x1b", "[", "]", "m", "31", ";", "\x1b[", "\x1b[31m", "\u{9b}", "é", "\x07", "P"
            ])
            .prop_map(|text| text.as_bytes().to_vec()),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn no_control_survives_but_complete_colours(input in hostile()) {
            let shown = show(&[&input]);
            let mut rest = shown.as_str();
            while let Some(at) = rest.find('\x1b') {
                let sequence = &rest[at + 1..];
                let end = sequence.find('m').expect("an ESC without an end");
                prop_assert!(sequence.starts_with('['));
                prop_assert!(sequence[1..end].chars().all(|c| c.is_ascii_digit() || c == ';' || c == ':'));
                rest = &sequence[end..];
            }
            let bad = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\x1b');
            prop_assert!(!shown.contains(bad));
        }

        #[test]
        fn the_cut_into_chunks_does_not_matter(input in hostile(), cuts in prop::collection::vec(0usize..80, 0..8)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(input.len())).chain([0, input.len()]).collect();
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &input[pair[0]..pair[1]]).collect();
            prop_assert_eq!(show(&chunks), show(&[&input]));
        }
    }
}

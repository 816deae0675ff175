//! Guest bytes as text that a terminal does not interpret.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maximum length of a name in an error message, in bytes of the name.
const MAX_SHOWN: usize = 4096;

/// Returns a name with control characters, invisible characters and backslashes escaped.
pub fn name(bytes: &[u8]) -> String {
    escape(&bytes[..bytes.len().min(MAX_SHOWN)], |c| c != '\\' && is_visible(c))
}

/// Returns a path as [`name`] does.
pub fn path(path: &Path) -> String {
    name(path.as_os_str().as_bytes())
}

/// Returns a line of a file, without its line feed. Tabs stay.
pub fn line(bytes: &[u8]) -> String {
    escape(bytes, |c| c == '\t' || is_visible(c))
}

fn escape(bytes: &[u8], plain: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                _ if plain(c) => text.push(c),
                '\\' => text.push_str("\\\\"),
                _ => text.extend(c.escape_unicode()),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns false for control characters, and for characters that change the order or hide parts of a line.
fn is_visible(c: char) -> bool {
    !c.is_control() && !is_ignorable(c) && !matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns true for characters without a width, some of which file systems ignore in names.
pub(crate) fn is_ignorable(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns a number of bytes with a binary unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut tenths, mut unit) = (bytes.saturating_mul(10) / 1024, 0);
    while tenths >= 10240 && unit + 1 < UNITS.len() {
        (tenths, unit) = (tenths / 1024, unit + 1);
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_see_no_control_characters() {
        assert_eq!(name(b"a\x1b[31m\n\t\\\x7f\xff\xc3\xa9"), "a\\u{1b}[31m\\u{a}\\u{9}\\\\\\u{7f}\\xffé");
        assert_eq!(name("a\u{202e}b\u{9b}".as_bytes()), "a\\u{202e}b\\u{9b}");
        assert_eq!(line(b"\ta\\n\r\x1b"), "\ta\\n\\u{d}\\u{1b}");
    }

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1229, "1.2 KiB"), (1 << 20, "1.0 MiB"), (3 << 40, "3.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
        assert!(size(u64::MAX).ends_with("PiB"));
    }
}

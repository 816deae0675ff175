//! The encoding that the first two lines declare, according to PEP 263.
//!
//! An interpreter that reads a file decodes it as declared before it parses it. In `utf-7`, a comment may therefore end
//! where no line ends. The parser reads UTF-8. So code that declares an encoding in which the same bytes may be a
//! different program is not analyzed at all.

/// A reason why code may be a different program for an interpreter than for the parser.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// An encoding that is declared at this byte.
    Encoding { at: usize, name: String },
    /// A null byte. Some versions of Python end a line at it and continue with the next line instead of the rest.
    Null { at: usize },
}

/// Encodings that are UTF-8, or of which the interpreter accepts only code that is the same in both.
const UNICODE: &[&str] = &["utf-8", "utf8", "u8", "utf", "cp65001", "ascii", "us-ascii"];
/// Encodings that equal UTF-8 for ASCII code.
const LATIN: &[&str] = &["latin-1", "latin1", "l1", "cp1252", "windows-1252"];
/// Prefixes of further ones: `iso-8859-1` to `-16`.
const ISO: &[&str] = &["iso-8859-", "iso8859-", "iso-latin-1", "latin-1-"];

/// Looks for a reason in code without a byte order mark.
pub(super) fn other(code: &str) -> Option<Other> {
    if let Some(at) = code.bytes().position(|byte| byte == 0) {
        return Some(Other::Null { at });
    }
    // The tokenizer knows three kinds of line ends, and the loader of the library one.
    let named = named(code, |byte| matches!(byte, b'\n' | b'\r')).into_iter();
    named.chain(self::named(code, |byte| byte == b'\n')).find_map(|(at, name)| {
        (!is_same(&name, code.is_ascii())).then(|| Other::Encoding { at, name: name.chars().take(40).collect() })
    })
}

/// Returns the encoding that the first two lines declare, and its position. The second line counts if the first has no
/// code.
fn named(code: &str, is_end: impl Fn(u8) -> bool) -> Option<(usize, String)> {
    let bytes = code.as_bytes();
    let mut start = 0;
    for _ in 0..2 {
        let rest = &bytes[start..];
        let length = rest.iter().position(|byte| is_end(*byte)).unwrap_or(rest.len());
        let line = &rest[..length];
        let blank = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | 0x0C)).count();
        match line.get(blank) {
            Some(b'#') => {
                if let Some((at, name)) = in_comment(line) {
                    return Some((start + at, name));
                }
            }
            // Only one of the two readers takes a carriage return here for a line end.
            None | Some(b'\r') => {}
            Some(_) => return None,
        }
        let end = if rest.get(length..).is_some_and(|rest| rest.starts_with(b"\r\n")) { 2 } else { 1 };
        start = (start + length + end).min(bytes.len());
    }
    None
}

/// Finds the first `coding[:=][ \t]*([-\w.]+)`.
fn in_comment(line: &[u8]) -> Option<(usize, String)> {
    line.windows(7).enumerate().find_map(|(at, window)| {
        let rest = window.strip_prefix(b"coding")?;
        if !matches!(rest, b":" | b"=") {
            return None;
        }
        let name = line[at + 7..].iter().skip_while(|byte| matches!(byte, b' ' | b'\t'));
        let name: String = name
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
            .map(|byte| char::from(*byte))
            .collect();
        (!name.is_empty()).then_some((at, name))
    })
}

/// Returns true if the code is the same program in this encoding as in UTF-8.
fn is_same(name: &str, ascii: bool) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
    UNICODE.contains(&&*name) || name.starts_with("utf-8-") || (ascii && (LATIN.contains(&&*name) || begins(ISO)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(code: &str) -> Option<String> {
        match other(code) {
            Some(Other::Encoding { name, .. }) => Some(name),
            Some(Other::Null { .. }) => Some("null".to_owned()),
            None => None,
        }
    }

    #[test]
    fn an_encoding_that_may_be_another_program_is_named() {
        for (code, expected) in [
            ("# coding: utf-7\n", "utf-7"),
            ("#coding=unicode_escape", "unicode_escape"),
            ("# -*- coding: raw_unicode_escape -*-\n", "raw_unicode_escape"),
            ("\t \x0C# vim: set fileencoding=UTF_16 :\n", "UTF_16"),
            ("#!/usr/bin/env python3\n# encoding: utf-7\n", "utf-7"),
            ("\n# coding: utf-7", "utf-7"),
            ("\x0C\r\n# coding: utf-7", "utf-7"),
            ("\r# coding: utf-7", "utf-7"),
            ("# a\r# b\r# coding: utf-7\n", "utf-7"),
            ("# coding coding: coding:\tutf-7", "coding"),
            ("# coding:: coding= utf-7", "utf-7"),
            ("# coding: latin-1\nx = 'ö'", "latin-1"),
            ("# coding: rot13\n", "rot13"),
            ("# coding: x.y\n", "x.y"),
            ("x = '\0'", "null"),
        ] {
            assert_eq!(encoding(code).as_deref(), Some(expected), "{code:?}");
        }
    }

    #[test]
    fn others_are_read() {
        for code in [
            "",
            "#",
            "# coding: utf-8\nx = 'ö'",
            "# -*- coding: UTF_8 -*-",
            "# vim: fileencoding=utf8\n",
            "# coding: utf-8-sig\nö",
            "# coding: latin-1\nx = 1",
            "# coding: iso-8859-15\n",
            "# coding: ascii\nx = 'ö'",
            "# encoding is utf-7",
            "# coding :utf-7",
            "# coding:",
            "x = 1 # coding: utf-7",
            "x = 1\n# coding: utf-7",
            "'''\n# coding: utf-7'''",
            "# a\n# b\n# coding: utf-7",
            "# a\n\n# coding: utf-7",
            "# coding: utf-8\n# coding: utf-7\n",
        ] {
            assert_eq!(encoding(code), None, "{code:?}");
        }
    }
}

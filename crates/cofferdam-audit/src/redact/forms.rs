//! The forms in which programs print a value.

use std::collections::BTreeSet;

use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD, Engine};

use super::SHORTEST;

/// A line of a longer secret is looked for alone if it has so many bytes.
const LINE: usize = 16;
/// Shorter pieces of base64 stand for too little to be found only where they belong.
const LEAST_ENCODED: usize = 4;

/// All forms of a secret, itself included.
pub(super) fn of(secret: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::new();
    let core = stripped(secret);
    if core.len() < secret.len() && core.len() >= SHORTEST {
        // Each byte or character has a form of its own: those of the whole value have these within. Not so base64.
        add(core, &mut forms);
        forms.insert(secret.to_vec());
        forms.extend(base64(secret));
    } else {
        add(secret, &mut forms);
    }
    for line in secret.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| line.len() >= LINE) {
        if line.len() < secret.len() {
            add(line, &mut forms);
        }
    }
    forms
}

/// What programs leave of a value that they strip, whatever they take for white space: Python also the separators of ASCII,
/// JavaScript also the byte order mark.
fn stripped(secret: &[u8]) -> &[u8] {
    match std::str::from_utf8(secret) {
        Ok(text) => text.trim_matches(is_space).as_bytes(),
        Err(_) => {
            let is_space = |byte: &u8| byte.is_ascii() && is_space(char::from(*byte));
            let Some(first) = secret.iter().position(|byte| !is_space(byte)) else { return &[] };
            let last = secret.iter().rposition(|byte| !is_space(byte)).unwrap_or(first);
            &secret[first..=last]
        }
    }
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f' | '\u{feff}')
}

fn add(secret: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    forms.insert(secret.to_vec());
    forms.extend(base64(secret));
    for kept in [&b"-_.~"[..], b"-_.!~*'()", b"-_.!~*'();/?:@&=+$,#", b"-_.~/", b""] {
        let all = kept.is_empty();
        for upper in [true, false] {
            let encoded = percent(secret, kept, all, upper);
            forms.insert(encoded.replace("%20", "+").into_bytes());
            forms.insert(encoded.into_bytes());
        }
    }
    forms.insert(secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
    forms.insert(secret.iter().map(|byte| format!("{byte:02X}")).collect::<String>().into_bytes());
    for quote in [Quote::Escaped, Quote::Plain] {
        forms.insert(escaped_bytes(secret, quote));
    }
    if let Ok(text) = std::str::from_utf8(secret) {
        for quote in [Quote::Escaped, Quote::Plain] {
            forms.insert(python(text, quote, |c| !is_printable(c)).into_bytes());
            forms.insert(python(text, quote, |c| !c.is_ascii() || !is_printable(c)).into_bytes());
            forms.insert(javascript(text, quote).into_bytes());
        }
        for solidus in [false, true] {
            for ascii in [false, true] {
                forms.insert(json(text, ascii, solidus).into_bytes());
            }
        }
    }
}

/// Within a longer encoded text, a value can begin at each of three places; what its neighbours share is left out.
fn base64(secret: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..3).flat_map(move |before| {
        let padded = [&vec![0; before][..], secret].concat();
        // Characters of which every bit is the secret's.
        let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        let cut = move |text: String| text.as_bytes()[first..last].to_vec();
        // By itself, the value also ends with a character of which only some bits are its own.
        let whole = (before == 0).then(|| BASE64_STANDARD_NO_PAD.encode(secret).into_bytes());
        let whole_url = (before == 0).then(|| BASE64_URL_SAFE_NO_PAD.encode(secret).into_bytes());
        let inside = [BASE64_STANDARD_NO_PAD.encode(&padded), BASE64_URL_SAFE_NO_PAD.encode(&padded)].map(cut);
        inside.into_iter().filter(|form| form.len() >= LEAST_ENCODED).chain(whole).chain(whole_url)
    })
}

fn percent(secret: &[u8], kept: &[u8], all: bool, upper: bool) -> String {
    let encoded = |byte: &u8| match byte {
        plain if !all && (plain.is_ascii_alphanumeric() || kept.contains(plain)) => char::from(*plain).to_string(),
        other if upper => format!("%{other:02X}"),
        other => format!("%{other:02x}"),
    };
    secret.iter().map(encoded).collect()
}

/// As JSON writes it within quotes.
fn json(text: &str, ascii: bool, solidus: bool) -> String {
    let mut made = String::new();
    for c in text.chars() {
        match c {
            '"' => made.push_str("\\\""),
            '\\' => made.push_str("\\\\"),
            '/' if solidus => made.push_str("\\/"),
            '\n' => made.push_str("\\n"),
            '\r' => made.push_str("\\r"),
            '\t' => made.push_str("\\t"),
            '\u{8}' => made.push_str("\\b"),
            '\u{c}' => made.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                let mut units = [0; 2];
                made.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
            c => made.push(c),
        }
    }
    made
}

/// What becomes of single quotes. Python and JavaScript choose the quotes around a text by those within: they escape
/// single ones only where there are others, too.
#[derive(Clone, Copy, PartialEq)]
enum Quote {
    Escaped,
    Plain,
}

/// As Python's `repr` and `ascii` show a text.
fn python(text: &str, quote: Quote, escaped: impl Fn(char) -> bool) -> String {
    let mut made = String::new();
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '\\' => made.push_str("\\\\"),
            '\'' if quote == Quote::Escaped => made.push_str("\\'"),
            '\n' => made.push_str("\\n"),
            '\r' => made.push_str("\\r"),
            '\t' => made.push_str("\\t"),
            c if !escaped(c) => made.push(c),
            _ if code < 0x100 => made.push_str(&format!("\\x{code:02x}")),
            _ if code < 0x10000 => made.push_str(&format!("\\u{code:04x}")),
            _ => made.push_str(&format!("\\U{code:08x}")),
        }
    }
    made
}

/// Whether Python takes a character for one that can be shown.
fn is_printable(c: char) -> bool {
    // Behind another, a character that only changes the one before it is shown, as Python does.
    c.is_ascii_graphic() || c == ' ' || (!c.is_ascii() && !format!("a{c}").escape_debug().to_string().contains('\\'))
}

/// As Node's `util.inspect` shows a text.
fn javascript(text: &str, quote: Quote) -> String {
    let mut made = String::new();
    for c in text.chars() {
        match c {
            '\\' => made.push_str("\\\\"),
            '\'' if quote == Quote::Escaped => made.push_str("\\'"),
            '\n' => made.push_str("\\n"),
            '\r' => made.push_str("\\r"),
            '\t' => made.push_str("\\t"),
            '\u{8}' => made.push_str("\\b"),
            '\u{c}' => made.push_str("\\f"),
            c if c.is_control() => made.push_str(&format!("\\x{:02X}", u32::from(c))),
            c => made.push(c),
        }
    }
    made
}

/// As Python shows bytes, and C and shells write them.
fn escaped_bytes(secret: &[u8], quote: Quote) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b'\\' => "\\\\".to_owned(),
        b'\'' if quote == Quote::Escaped => "\\'".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\t' => "\\t".to_owned(),
        b' '..=b'~' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    };
    secret.iter().map(escaped).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
    use proptest::prelude::*;

    use super::super::Redactor;
    use super::*;

    fn is_taken_out(redactor: &Redactor, text: &str, form: &str) {
        let left = String::from_utf8(redactor.redact(text.as_bytes())).unwrap();
        assert!(left.contains("[redacted:A]") && !left.contains(form), "{text} became {left}");
    }

    /// Forms as other programs made them: `json.dumps`, `urllib.parse.quote`, `encodeURIComponent`, `base64`, `xxd -p`.
    #[test]
    fn forms_of_other_programs_are_found() {
        let redactor = Redactor::new([("A", "p\"a/ß+\\w d\n1")]).unwrap();
        for form in [
            "p\"a/ß+\\w d\n1",
            r#"p\"a/\u00df+\\w d\n1"#,
            r#"p\"a/ß+\\w d\n1"#,
            r#"p\"a\/\u00df+\\w d\n1"#,
            "p%22a%2F%C3%9F%2B%5Cw%20d%0A1",
            "p%22a/%C3%9F%2B%5Cw%20d%0A1",
            "p%22a%2F%C3%9F%2B%5Cw+d%0A1",
            "p%22a%2f%c3%9f%2b%5cw%20d%0a1",
            "cCJhL8OfK1x3IGQKMQ==",
            "cCJhL8OfK1x3IGQKMQ",
            "7022612fc39f2b5c7720640a31",
            "7022612FC39F2B5C7720640A31",
            r#"p"a/\xc3\x9f+\\w d\n1"#,
        ] {
            is_taken_out(&redactor, &format!("<{form}>"), form);
        }
    }

    /// As Python 3 (`repr`, `ascii`, `json.dumps`, of a text and of its bytes) and Node (`util.inspect`,
    /// `JSON.stringify`) print awkward values.
    #[test]
    fn forms_of_awkward_values_are_found() {
        let cases: [(&str, &[&str]); 7] = [
            (r"corp\svc-Hunter2xyz", &[r"corp\svc-Hunter2xyz", r"corp\\svc-Hunter2xyz"]),
            ("it's\"Hunter2xyz", &[r#"it\'s"Hunter2xyz"#, r#"it's\"Hunter2xyz"#, r#"it's"Hunter2xyz"#]),
            ("it's-Hunter2xyz", &["it's-Hunter2xyz", r"it\'s-Hunter2xyz"]),
            (
                "pässwordHunter2xyz",
                &[
                    "pässwordHunter2xyz",
                    r"p\xe4sswordHunter2xyz",
                    r"p\u00e4sswordHunter2xyz",
                    r"p\xc3\xa4sswordHunter2xyz",
                ],
            ),
            ("a\nb\tc\rd\x1be\x7f", &[r"a\nb\tc\rd\x1be\x7f", r"a\nb\tc\rd\x1Be\x7F", r"a\nb\tc\rd\u001be\u007f"]),
            (
                "smile😀€\u{85}\u{200b}",
                &[
                    r"smile\U0001f600\u20ac\x85\u200b",
                    r"smile😀€\x85\u200b",
                    r"smile\ud83d\ude00\u20ac\u0085\u200b",
                    "smile😀€\\x85\u{200b}",
                ],
            ),
            ("e\u{301}-combined", &["e\u{301}-combined", r"e\u0301-combined"]),
        ];
        for (secret, forms) in cases {
            let redactor = Redactor::new([("A", secret)]).unwrap();
            for form in forms {
                is_taken_out(&redactor, &format!("<'{form}'>"), form);
            }
        }
    }

    #[test]
    fn lines_of_a_long_secret_are_found_alone() {
        let redactor = Redactor::new([("A", "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nshort\n")]).unwrap();
        is_taken_out(&redactor, "x MIIEvQIBADANBgkq y", "MIIEvQIBADANBgkq");
        assert_eq!(redactor.redact(b"short"), b"short");
    }

    /// As a variable that was read from a file, of which programs strip what they do not want.
    #[test]
    fn a_value_without_the_white_space_at_its_ends_is_found() {
        for (secret, core) in [
            ("hunter2-4711\n", "hunter2-4711"),
            (" \thunter2-4711 \r\n", "hunter2-4711"),
            ("\u{a0}hunter\u{3000}4711\u{2003}\x0b", "hunter\u{3000}4711"),
            ("\x1chunter2-4711\x1f", "hunter2-4711"),
            ("\u{feff}hunter2-4711\u{feff}", "hunter2-4711"),
        ] {
            let redactor = Redactor::new([("A", secret)]).unwrap();
            is_taken_out(&redactor, &format!("Bearer {core} x"), core);
            assert_eq!(redactor.redact(format!("<{secret}>").as_bytes()), b"<[redacted:A]>");
            for shown in [core, secret.trim_start(), secret.trim_end(), secret] {
                let encoded = [BASE64_STANDARD.encode(shown), percent(shown.as_bytes(), b"", true, true)];
                for (text, form) in
                    encoded.iter().zip([&BASE64_STANDARD.encode(core), &percent(core.as_bytes(), b"", true, true)])
                {
                    is_taken_out(&redactor, text, form);
                }
                is_taken_out(&redactor, &json(shown, true, true), core);
            }
        }
        let bytes = b" \xff\xfehunter2\xff\n";
        let left = Redactor::new([("A", bytes)]).unwrap().redact(b"<\xff\xfehunter2\xff>");
        assert_eq!(left, b"<[redacted:A]>");
        // What is left of one must be as long as any secret.
        for (secret, core) in [("abc\n", "abc"), ("    \n", "")] {
            let redactor = Redactor::new([("A", secret)]).unwrap();
            let left = redactor.redact(format!("<{secret}><{core}>").as_bytes());
            assert_eq!(left, format!("<[redacted:A]><{core}>").as_bytes());
        }
    }

    proptest! {
        /// Of a secret within a longer encoded text, no two bytes of its inside can be read afterwards.
        #[test]
        fn base64_of_a_longer_text_gives_nothing_away(
            secret in proptest::collection::vec(any::<u8>(), 8..40),
            before in proptest::collection::vec(any::<u8>(), 0..7),
            after in proptest::collection::vec(any::<u8>(), 0..7),
        ) {
            let redactor = Redactor::new([("A", &secret)]).unwrap();
            let all = [&before[..], &secret, &after].concat();
            for text in [BASE64_STANDARD.encode(&all), BASE64_URL_SAFE.encode(&all)] {
                let left = String::from_utf8(redactor.redact(text.as_bytes())).unwrap();
                prop_assert!(left.contains("[redacted:A]"), "{} became {}", text, left);
                // Whole groups that stand for the secret alone are gone.
                prop_assert!(left.len() <= text.len() - (secret.len() - 2) * 4 / 3 + "[redacted:A]".len() + 4);
            }
        }
    }
}

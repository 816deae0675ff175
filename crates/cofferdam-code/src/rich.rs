//! Results besides the output, as the code's side writes them and as the host takes them.
//!
//! They come from inside in a file that any code there can write: lines of JSON. Every line is parsed by itself, strictly;
//! what is too long, too much or not well-formed is dropped and counted. They can say nothing about how the code ended.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most results of one call.
const MAX_RESULTS: usize = 64;
/// The longest remark.
const MAX_NOTE: usize = 200;
/// The longest version, and the characters in it.
const MAX_VERSION: usize = 40;
/// The widest and highest image.
const MAX_PIXELS: u32 = 32_768;
/// What is passed on as it is: text.
const TEXTS: &[&str] = &["text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml"];

/// How a result came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RichKind {
    /// The value of the last expression.
    Value,
    /// What the code showed.
    Display,
    /// A figure that was drawn.
    Figure,
}

/// A result besides the output. It is the code's: HTML and SVG may carry scripts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RichResult {
    /// How it came to be.
    pub kind: RichKind,
    /// The same thing in several forms: text by its media type; `application/json` as JSON; `image/png` in base64.
    pub data: BTreeMap<String, Value>,
    /// What is missing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What was taken from inside.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// The results.
    pub results: Vec<RichResult>,
    /// How many there were besides.
    pub dropped: u64,
    /// The version that the interpreter claims to have.
    pub version: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kind: String,
    data: BTreeMap<String, String>,
    #[serde(default)]
    note: Option<String>,
}

/// Takes what a file says. `bytes` is bounded by the caller.
pub fn take(bytes: &[u8]) -> Taken {
    let mut taken = Taken::default();
    for (number, line) in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate() {
        let parsed = if number > 2 * MAX_RESULTS { None } else { serde_json::from_slice::<Line>(line).ok() };
        match parsed {
            Some(line) if line.kind == "runtime" => taken.version = version(line.data),
            Some(line) if taken.results.len() < MAX_RESULTS => match result(line) {
                Some(result) => taken.results.push(result),
                None => taken.dropped += 1,
            },
            _ => taken.dropped += 1,
        }
    }
    taken
}

fn version(mut data: BTreeMap<String, String>) -> Option<String> {
    data.remove("version").filter(|text| plain_version(text))
}

/// Whether a text can be a version, and do no harm where it is shown.
pub fn plain_version(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_' | '(' | ')' | ' ' | ',');
    !text.is_empty() && text.len() <= MAX_VERSION && text.chars().all(plain)
}

fn result(line: Line) -> Option<RichResult> {
    let kind = match line.kind.as_str() {
        "value" => RichKind::Value,
        "display" => RichKind::Display,
        "figure" => RichKind::Figure,
        _ => return None,
    };
    let note = line.note.map(|note| note.chars().take(MAX_NOTE).collect());
    let data: BTreeMap<String, Value> =
        line.data.into_iter().filter_map(|(mime, text)| form(&mime, text).map(|value| (mime, value))).collect();
    (!data.is_empty()).then_some(RichResult { kind, data, note })
}

fn form(mime: &str, text: String) -> Option<Value> {
    match mime {
        "application/json" => serde_json::from_str(&text).ok(),
        "image/png" => is_png(&text).then_some(Value::String(text)),
        _ => TEXTS.contains(&mime).then_some(Value::String(text)),
    }
}

/// Whether base64 begins with the signature and a header of a PNG of moderate size, and is base64 to its end.
fn is_png(text: &str) -> bool {
    let Ok(image) = STANDARD.decode(text) else { return false };
    let begins = image.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    let number = |at: usize| image.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    begins && [16, 20].iter().all(|at| number(*at).is_some_and(|pixels| (1..=MAX_PIXELS).contains(&pixels)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn well_formed_lines_are_taken() {
        let png = STANDARD.encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01");
        let lines = format!(
            "{{\"kind\":\"runtime\",\"data\":{{\"version\":\"3.11.2\"}}}}\n\
             {{\"kind\":\"value\",\"data\":{{\"text/plain\":\"1\",\"application/json\":\"[1]\"}},\"note\":\"n\"}}\n\
             {{\"kind\":\"figure\",\"data\":{{\"image/png\":\"{png}\"}}}}\n"
        );
        let taken = take(lines.as_bytes());
        assert_eq!(taken.version.as_deref(), Some("3.11.2"));
        assert_eq!(taken.dropped, 0);
        assert_eq!(taken.results[0].data["application/json"], serde_json::json!([1]));
        assert_eq!(taken.results[0].note.as_deref(), Some("n"));
        assert_eq!(taken.results[1].kind, RichKind::Figure);
    }

    #[test]
    fn what_is_not_well_formed_is_dropped_and_counted() {
        let deep = format!("{{\"kind\":\"value\",\"data\":{{\"application/json\":\"{}\"}}}}", "[".repeat(10_000));
        for line in [
            "garbage",
            "{}",
            r#"{"kind":"exit","data":{"code":"0"}}"#,
            r#"{"kind":"value","data":{}}"#,
            r#"{"kind":"value","data":{"text/plain":1}}"#,
            r#"{"kind":"value","data":{"text/javascript":"x"}}"#,
            r#"{"kind":"value","data":{"image/png":"bm90IGEgcG5n"}}"#,
            r#"{"kind":"value","data":{"text/plain":"x"},"exit_code":0}"#,
            &deep,
        ] {
            let taken = take(line.as_bytes());
            assert_eq!((taken.results.len(), taken.dropped), (0, 1), "{line:.60}");
        }
        let many = r#"{"kind":"value","data":{"text/plain":"x"}}"#.to_owned() + "\n";
        let taken = take(many.repeat(1000).as_bytes());
        assert_eq!((taken.results.len(), taken.dropped), (MAX_RESULTS, 1000 - MAX_RESULTS as u64));
        assert_eq!(take(br#"{"kind":"runtime","data":{"version":"3.1\u001b[31m"}}"#).version, None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let taken = take(&bytes);
            prop_assert!(taken.results.len() <= MAX_RESULTS);
        }
    }
}

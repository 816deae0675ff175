//! Results besides the output, in the format that the wrapper in the sandbox writes.
//!
//! They come out of the sandbox in a file of JSON lines that any code there can write. Each line is parsed on its own
//! and strictly. Lines that are too long, too many or malformed are dropped and counted. Results cannot affect the
//! reported exit of the code.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most results of one call.
const MAX_RESULTS: usize = 64;
/// The most characters of a note.
const MAX_NOTE: usize = 200;
/// The most characters of a version.
const MAX_VERSION: usize = 40;
/// The greatest width and height of an image, in pixels.
const MAX_PIXELS: u32 = 32_768;
/// Media types that are passed on unchanged as text.
const TEXTS: &[&str] = &["text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml"];

/// The origin of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RichKind {
    /// The value of the last expression.
    Value,
    /// A value displayed by the code.
    Display,
    /// A figure drawn by the code.
    Figure,
}

/// A result besides the output. The guest controls it: HTML and SVG may contain scripts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RichResult {
    /// The origin of the result.
    pub kind: RichKind,
    /// Representations of the result by media type: `application/json` as JSON, `image/png` in base64, others as text.
    pub data: BTreeMap<String, Value>,
    /// A note about omitted parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The results read from the sandbox.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// The results.
    pub results: Vec<RichResult>,
    /// Number of dropped results.
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

/// Parses a results file. The caller bounds the size of `bytes`.
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

/// Returns true if a text can be a version and is safe to display.
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

/// Returns true if the text is valid base64 of data with the signature and header of a PNG of moderate size.
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

    /// Promise (Code execution): Dropped results are counted.
    #[test]
    fn malformed_results_are_dropped_and_counted() {
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

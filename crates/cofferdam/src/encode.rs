//! Encoding of output bytes in JSON: text if they are UTF-8, else base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam::OutputStream;
use serde_json::{Value, json};

/// Returns `{"text": …}`, or `{"base64": …}` for bytes that are not UTF-8.
pub fn text_or_base64(data: &[u8]) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => json!({"text": text}),
        Err(_) => json!({"base64": STANDARD.encode(data)}),
    }
}

/// Converts like [`text_or_base64`], without copying text.
pub fn into_text_or_base64(data: Vec<u8>) -> Value {
    match String::from_utf8(data) {
        // The `json` macro would copy the text.
        Ok(text) => Value::Object([("text".to_owned(), Value::String(text))].into_iter().collect()),
        Err(error) => text_or_base64(error.as_bytes()),
    }
}

/// Encoder for the chunks of two streams. Buffers a character that is split between chunks until it is complete.
#[derive(Debug, Default)]
pub struct Lines {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Lines {
    /// Encodes the next chunk. Returns `None` if all of it is buffered.
    pub fn feed(&mut self, stream: OutputStream, chunk: &[u8]) -> Option<Value> {
        let buffer = self.buffer(stream);
        let mut data = std::mem::take(buffer);
        data.extend_from_slice(chunk);
        if let Err(error) = std::str::from_utf8(&data)
            && error.error_len().is_none()
        {
            *buffer = data.split_off(error.valid_up_to());
        }
        (!data.is_empty()).then(|| text_or_base64(&data))
    }

    /// Encodes the buffered rest of a stream at its end.
    pub fn finish(&mut self, stream: OutputStream) -> Option<Value> {
        let data = std::mem::take(self.buffer(stream));
        (!data.is_empty()).then(|| text_or_base64(&data))
    }

    fn buffer(&mut self, stream: OutputStream) -> &mut Vec<u8> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(value: &Value) -> Vec<u8> {
        match (value["text"].as_str(), value["base64"].as_str()) {
            (Some(text), None) => text.as_bytes().to_vec(),
            (None, Some(text)) => STANDARD.decode(text).unwrap(),
            _ => panic!("{value}"),
        }
    }

    #[test]
    fn a_character_cut_in_two_is_put_together() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(OutputStream::Stdout, b"a\xe2\x82"), Some(json!({"text": "a"})));
        assert_eq!(lines.feed(OutputStream::Stderr, b"\xac"), Some(json!({"base64": "rA=="})));
        assert_eq!(lines.feed(OutputStream::Stdout, b""), None);
        assert_eq!(lines.feed(OutputStream::Stdout, b"\xacb"), Some(json!({"text": "€b"})));
        assert_eq!(lines.finish(OutputStream::Stdout), None);
    }

    #[test]
    fn binary_output_is_base64() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(OutputStream::Stdout, b"a\xff"), Some(json!({"base64": "Yf8="})));
        assert_eq!(lines.feed(OutputStream::Stdout, b"\xe2"), None);
        assert_eq!(lines.finish(OutputStream::Stdout), Some(json!({"base64": "4g=="})));
        assert_eq!(text_or_base64(b""), json!({"text": ""}));
    }

    proptest! {
        /// Promise (Command line): The encoding of output as JSON loses and moves no byte.
        #[test]
        fn no_byte_is_lost_or_moved(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..20)) {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for chunk in &chunks {
                got.extend(lines.feed(OutputStream::Stdout, chunk).iter().flat_map(bytes));
            }
            got.extend(lines.finish(OutputStream::Stdout).iter().flat_map(bytes));
            prop_assert_eq!(got, chunks.concat());
        }
    }
}

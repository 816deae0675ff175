//! Binary contents in JSON: `{"text": "…"}` if they are UTF-8, else `{"base64": "…"}`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::CallError;

/// Contents in a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    text: Option<String>,
    base64: Option<String>,
}

impl Content {
    /// Returns the bytes.
    pub fn into_bytes(self) -> Result<Vec<u8>, CallError> {
        match (self.text, self.base64) {
            (Some(text), None) => Ok(text.into_bytes()),
            (None, Some(base64)) => {
                STANDARD.decode(base64).map_err(|error| CallError::invalid(format!("content.base64: {error}")))
            }
            _ => Err(CallError::invalid("content has either text or base64")),
        }
    }
}

/// Returns bytes as contents of a result. Text whose escapes would be longer than base64 becomes base64, so that a
/// result is at most a third longer than the bytes.
pub fn content(bytes: Vec<u8>) -> Value {
    match String::from_utf8(bytes) {
        Ok(text) if escapes(&text) <= text.len() / 3 => json!({"text": text}),
        Ok(text) => json!({"base64": STANDARD.encode(text)}),
        Err(error) => json!({"base64": STANDARD.encode(error.as_bytes())}),
    }
}

/// Returns the bytes that JSON adds to a text.
fn escapes(text: &str) -> usize {
    let escaped = |byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
        0..0x20 => 5,
        _ => 0,
    };
    text.bytes().map(escaped).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_round_trip_and_stay_short(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let value = content(bytes.clone());
            prop_assert!(value.to_string().len() <= bytes.len() * 4 / 3 + 20);
            prop_assert_eq!(serde_json::from_value::<Content>(value).unwrap().into_bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn text_stays_text_unless_its_escapes_are_long() {
        assert_eq!(content("größe\n".into()), json!({"text": "größe\n"}));
        assert_eq!(content(vec![1; 3]), json!({"base64": "AQEB"}));
        assert_eq!(content(vec![0xff]), json!({"base64": "/w=="}));
        for bad in [json!({}), json!({"text": "a", "base64": "AA=="}), json!({"base64": "A"})] {
            assert!(serde_json::from_value::<Content>(bad).unwrap().into_bytes().is_err());
        }
    }
}

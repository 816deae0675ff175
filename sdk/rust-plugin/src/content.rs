//! Binary contents in messages: text if they are UTF-8, else Base64.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoded {
    Text(String),
    Base64(String),
}

pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Encoded::Text(text.to_owned()),
        Err(_) => Encoded::Base64(encode(bytes)),
    }
    .serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    match Encoded::deserialize(deserializer)? {
        Encoded::Text(text) => Ok(text.into_bytes()),
        Encoded::Base64(text) => decode(&text).ok_or_else(|| D::Error::custom("the content is not Base64")),
    }
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let symbol = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize] as char;
            text.push(if i <= chunk.len() { symbol } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let symbols = text.trim_end_matches('=');
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::with_capacity(symbols.len() * 3 / 4));
    for symbol in symbols.bytes() {
        let value = ALPHABET.iter().position(|known| *known == symbol)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    (text.len() % 4 == 0 && text.len() - symbols.len() <= 2 && bits & ((1 << count) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_known_values() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn malformed_base64_is_rejected() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Z===", "Zm9*", "===="] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}

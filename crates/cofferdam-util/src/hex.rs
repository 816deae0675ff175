//! Bytes as hexadecimal digits.

use std::io;

const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];

/// Encodes bytes as lower-case digits.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 0xf)]);
    }
    text
}

/// Returns the digits of this many random bytes of the system, which cannot be guessed.
///
/// # Errors
/// That of the kernel.
pub fn random(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(encode(random))
}

/// Decodes digits of either case. Returns `None` unless there are exactly two digits for each byte of `into`. Copies the
/// bytes nowhere else, since they may be secret.
pub fn decode(digits: &[u8], into: &mut [u8]) -> Option<()> {
    if digits.len() != 2 * into.len() {
        return None;
    }
    for (byte, pair) in into.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(())
}

fn value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_are_decoded_to_the_same_bytes() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        let text = encode(&bytes);
        assert!(text.starts_with("000102") && text.ends_with("fdfeff"), "{text}");
        for text in [text.to_uppercase(), text] {
            let mut decoded = [0; 256];
            assert_eq!(decode(text.as_bytes(), &mut decoded), Some(()));
            assert_eq!(decoded[..], bytes);
        }
    }

    #[test]
    fn random_digits_have_the_length_and_differ() {
        let (one, two) = (random(16).unwrap(), random(16).unwrap());
        assert!(one != two && decode(one.as_bytes(), &mut [0; 16]).is_some(), "{one} {two}");
    }

    #[test]
    fn text_of_another_length_or_with_other_characters_is_refused() {
        for text in ["", "0", "00", "000", "00000", "0g00", "00 0", "é00", "+000"] {
            assert_eq!(decode(text.as_bytes(), &mut [0; 2]), None, "{text}");
        }
        assert_eq!((encode(""), decode(b"", &mut [])), (String::new(), Some(())));
    }
}

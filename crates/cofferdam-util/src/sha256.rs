//! SHA-256 digests as text: 64 lower-case hexadecimal digits.

use std::io::{self, ErrorKind, Read};

use sha2::{Digest as _, Sha256};

use crate::hex;

const PIECE: usize = 128 << 10;

/// Returns the digest of bytes.
pub fn of(bytes: impl AsRef<[u8]>) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Returns the digest of a stream.
pub fn of_reader(from: impl Read) -> io::Result<String> {
    of_pieces(from, |_| Ok(()))
}

/// Returns the digest of a stream, and passes each piece of the stream to `take`.
pub fn of_pieces(mut from: impl Read, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(hex::encode(hasher.finalize())),
            Ok(length) => {
                hasher.update(&piece[..length]);
                take(&piece[..length])?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns true if a text has the form of a digest.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digest_is_the_known_one_of_abc() {
        assert_eq!(of("abc"), ABC);
        assert_eq!(of_reader(&b"abc"[..]).unwrap(), ABC);
    }

    #[test]
    fn all_pieces_of_a_stream_are_hashed_and_passed_on() {
        let bytes: Vec<u8> = (0..3 * PIECE + 1).map(|at| (at % 251) as u8).collect();
        let mut taken = Vec::new();
        let take = |piece: &[u8]| {
            taken.extend_from_slice(piece);
            Ok(())
        };
        assert_eq!(of_pieces(&bytes[..], take).unwrap(), of(&bytes));
        assert_eq!(taken, bytes);
        let refused = of_pieces(&bytes[..], |_| Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn a_digest_has_64_lower_case_digits() {
        assert!(is_digest(ABC));
        for bad in ["", &ABC[1..], &format!("{ABC}0"), &ABC.to_uppercase(), &ABC.replace('b', "g")] {
            assert!(!is_digest(bad), "{bad}");
        }
    }
}

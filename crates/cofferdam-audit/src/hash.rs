//! SHA-256 values, and codes made with a key.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 value, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// What stands before the first line.
    pub const ZERO: Self = Self([0; 32]);

    /// Of some bytes.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Of everything that a reader gives, and how many bytes that was.
    pub fn of_reader(mut reader: impl Read) -> io::Result<(Self, u64)> {
        let mut hasher = Sha256::new();
        let count = io::copy(&mut reader, &mut hasher)?;
        Ok((Self(hasher.finalize().into()), count))
    }

    /// From the 32 bytes themselves.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// The text is not 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a SHA-256 value; it has 64 digits, 0 to 9 and a to f")]
pub struct NotADigest;

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
        text.parse()
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return Err(NotADigest);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

fn digit(c: u8) -> Result<u8, NotADigest> {
    match c {
        b'0'..=b'9' => Ok(c - b'0'),
        b'a'..=b'f' => Ok(c - b'a' + 10),
        _ => Err(NotADigest),
    }
}

/// HMAC with SHA-256 of RFC 2104.
pub(crate) fn hmac(key: &[u8], parts: &[&[u8]]) -> Digest {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let mut inner = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x36));
    parts.iter().for_each(|part| inner.update(part));
    let outer = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x5c)).chain_update(inner.finalize());
    Digest(outer.finalize().into())
}

/// Compares in a time that does not depend on where the two differ.
pub(crate) fn same(a: &Digest, b: &Digest) -> bool {
    a.0.iter().zip(&b.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of("abc").to_string(), abc);
        assert_eq!(abc.parse(), Ok(Digest::of("abc")));
        assert_eq!(Digest::of_reader(&b"abc"[..]).unwrap(), (Digest::of("abc"), 3));
        assert_eq!(abc.to_uppercase().parse::<Digest>(), Err(NotADigest));
        assert_eq!(abc[1..].parse::<Digest>(), Err(NotADigest));
    }

    /// Cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn codes_are_those_of_the_standard() {
        for (key, data, expected) in [
            (&[0x0b; 20][..], "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe",
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            let (first, second) = data.split_at(3);
            let made = hmac(key, &[first.as_bytes(), second.as_bytes()]);
            assert_eq!(made.to_string(), expected);
            assert!(same(&made, &expected.parse().unwrap()) && !same(&made, &Digest::ZERO));
        }
    }
}

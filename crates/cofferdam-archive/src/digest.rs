//! SHA-256 values, in binary and as text.

use std::fmt;
use std::str::FromStr;

use cofferdam_util::hex;
use sha2::Digest as _;
use sha2::Sha256;

use crate::error::ArchiveError;

/// A SHA-256. It is formatted and parsed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; Digest::LENGTH]);

impl Digest {
    /// Length of a digest, in bytes.
    pub const LENGTH: usize = 32;

    /// Creates a digest that was computed elsewhere.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// Computes the digest of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns a hasher's result.
    pub(crate) fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ArchiveError;

    fn from_str(text: &str) -> Result<Self, ArchiveError> {
        let mut bytes = [0; Self::LENGTH];
        match hex::decode(text.as_bytes(), &mut bytes) {
            Some(()) => Ok(Self(bytes)),
            None => Err(ArchiveError::BadDigest { text: text.chars().take(80).collect() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_text_round_trips() {
        let digest = Digest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        for bad in ["", "ba78", &text[1..], &format!("{text}0"), &text.replace('b', "g"), &text.replace("b0", "é")] {
            assert!(matches!(bad.parse::<Digest>(), Err(ArchiveError::BadDigest { .. })), "{bad}");
        }
    }
}

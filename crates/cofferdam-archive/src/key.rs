//! The caller's key, and what is derived from it for one archive.
//!
//! The caller's key encrypts nothing itself. HKDF-SHA256 makes of it and of 32 random bytes, which stand in the head, the key
//! of this archive's stream and a value to know the right key by. So archives share no key, no nonce can come twice,
//! and an archive opens with one key only.

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::error::{ArchiveError, Result};

/// Bytes of a salt.
pub(crate) const SALT: usize = 32;
/// Bytes of the value that the right key is known by.
pub(crate) const CHECK: usize = 32;
const STREAM_INFO: &[u8] = b"cofferdam snapshot 1 stream";
const CHECK_INFO: &[u8] = b"cofferdam snapshot 1 check";

/// The key that an archive is encrypted with. It is overwritten when dropped, and never shown.
pub struct Key(Zeroizing<[u8; Key::LENGTH]>);

impl Key {
    /// Bytes of a key.
    pub const LENGTH: usize = 32;

    /// A key of 32 bytes, which should be random: a password has to be stretched first.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut key = Zeroizing::new([0; Self::LENGTH]);
        if bytes.len() != Self::LENGTH {
            return Err(ArchiveError::BadKey { length: bytes.len() });
        }
        key.copy_from_slice(bytes);
        Ok(Self(key))
    }

    /// What one archive is sealed with.
    pub(crate) fn derive(&self, salt: &[u8; SALT]) -> Result<Derived> {
        let source = Hkdf::<Sha256>::new(Some(salt), &*self.0);
        let mut derived = Derived { stream: Zeroizing::new([0; Self::LENGTH]), check: [0; CHECK] };
        // Neither output is longer than HKDF allows; were it so, nothing must be sealed.
        let too_long = |_| ArchiveError::BadKey { length: Self::LENGTH };
        source.expand(STREAM_INFO, &mut *derived.stream).map_err(too_long)?;
        source.expand(CHECK_INFO, &mut derived.check).map_err(too_long)?;
        Ok(derived)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// What is derived of a key for one archive.
pub(crate) struct Derived {
    pub(crate) stream: Zeroizing<[u8; Key::LENGTH]>,
    pub(crate) check: [u8; CHECK],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_shown() {
        let key = Key::new(&[0xAB; 32]).unwrap();
        let shown = format!("{key:?}");
        assert!(!shown.to_lowercase().contains("ab") && !shown.contains("171"), "{shown}");
        for length in [0, 16, 31, 33, 64] {
            assert!(matches!(Key::new(&vec![1; length]), Err(ArchiveError::BadKey { .. })));
        }
    }

    #[test]
    fn each_salt_and_each_key_derives_others() {
        let derive = |key: u8, salt: u8| {
            let derived = Key::new(&[key; 32]).unwrap().derive(&[salt; SALT]).unwrap();
            (*derived.stream, derived.check)
        };
        let all = [derive(1, 1), derive(1, 2), derive(2, 1)];
        for (at, one) in all.iter().enumerate() {
            assert_ne!(one.0, one.1);
            for other in &all[at + 1..] {
                assert!(one.0 != other.0 && one.1 != other.1);
            }
        }
    }
}

//! The caller's key, and the keys derived from it for one archive.
//!
//! The caller's key encrypts nothing itself. HKDF-SHA256 derives two values from it and from 32 random bytes in the
//! head: the key of this archive's stream, and a value that identifies the right key. So archives share no key, no
//! nonce can repeat, and an archive opens with one key only.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use cofferdam_util::hex;
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::error::{ArchiveError, Result, io};

/// Length of a salt, in bytes.
pub(crate) const SALT: usize = 32;
/// Length of the value that identifies the right key, in bytes.
pub(crate) const CHECK: usize = 32;
const STREAM_INFO: &[u8] = b"cofferdam snapshot 1 stream";
const CHECK_INFO: &[u8] = b"cofferdam snapshot 1 check";

/// The key that an archive is encrypted with. It is zeroed on drop and never printed.
pub struct Key(Zeroizing<[u8; Key::LENGTH]>);

impl Key {
    /// Length of a key, in bytes.
    pub const LENGTH: usize = 32;

    /// Creates a key from 32 bytes, which should be random: stretch a password first.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut key = Zeroizing::new([0; Self::LENGTH]);
        if bytes.len() != Self::LENGTH {
            return Err(ArchiveError::BadKey { length: bytes.len() });
        }
        key.copy_from_slice(bytes);
        Ok(Self(key))
    }

    /// Reads a key from a file: 32 bytes, or 64 hexadecimal digits with an optional line end. Refuses a file that
    /// belongs to another user, or that anyone but its owner can read or change. Does not block if the file was opened
    /// non-blocking.
    pub fn of_file(file: &File) -> Result<Self> {
        let bad = |reason| ArchiveError::KeyFile { reason };
        let meta = file.metadata().map_err(io("inspect", "key"))?;
        if !meta.is_file() {
            return Err(bad("it is not a regular file: pass one with 32 random bytes"));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(bad("other users can read or change it: run `chmod 600` on it, or create a new key"));
        }
        if meta.uid() != rustix::process::geteuid().as_raw() && meta.uid() != 0 {
            return Err(bad("it belongs to another user: use a key of your own"));
        }
        // Read one byte more than a key can have, to detect longer files.
        let mut contents = Zeroizing::new([0; 2 * Self::LENGTH + 3]);
        let mut length = 0;
        while length < contents.len() {
            match file.read_at(&mut contents[length..], length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io("read", "key")(error)),
            }
        }
        Self::parse(&contents[..length]).ok_or_else(|| {
            bad("it has neither exactly 32 bytes nor exactly 64 hexadecimal digits: pass 32 random bytes")
        })
    }

    fn parse(contents: &[u8]) -> Option<Self> {
        let mut key = Zeroizing::new([0; Self::LENGTH]);
        if contents.len() == Self::LENGTH {
            key.copy_from_slice(contents);
            return Some(Self(key));
        }
        let digits = contents.strip_suffix(b"\n").unwrap_or(contents);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        hex::decode(digits, &mut *key)?;
        Some(Self(key))
    }

    /// Derives the keys of one archive.
    pub(crate) fn derive(&self, salt: &[u8; SALT]) -> Result<Derived> {
        let source = Hkdf::<Sha256>::new(Some(salt), &*self.0);
        let mut derived = Derived { stream: Zeroizing::new([0; Self::LENGTH]), check: [0; CHECK] };
        // Neither output is longer than HKDF allows. If it were, nothing must be sealed.
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

/// The values derived from a key for one archive.
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

    /// Promise (Virtual machines): A key file has an exact format and is readable by its owner only.
    #[test]
    fn a_key_in_a_file_is_the_owners_alone_and_exact() {
        use std::io::Write;
        use std::os::unix::fs::PermissionsExt;
        let read = |contents: &[u8], mode: u32| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(contents).unwrap();
            file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            Key::of_file(&file).map(|key| *key.0)
        };
        let digits = "aB".repeat(32);
        for good in
            [&[0xab; 32][..], digits.as_bytes(), format!("{digits}\n").as_bytes(), format!("{digits}\r\n").as_bytes()]
        {
            assert_eq!(read(good, 0o600).unwrap(), [0xab; 32]);
        }
        for bad in [
            &[][..],
            &[1; 31],
            &[1; 33],
            &[1; 64],
            &digits.as_bytes()[1..],
            format!("{digits}0").as_bytes(),
            &[b'a'; 500],
        ] {
            let error = read(bad, 0o600).unwrap_err().to_string();
            assert!(error.contains("exactly 32 bytes") && !error.to_lowercase().contains("abab"), "{error}");
        }
        for mode in [0o640, 0o604, 0o620, 0o601] {
            assert!(read(&[1; 32], mode).unwrap_err().to_string().contains("chmod 600"));
        }
        assert!(Key::of_file(&File::open("/dev/null").unwrap()).is_err());
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

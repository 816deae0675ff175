//! The key that signs the lines of a log with HMAC-SHA-256.

use std::fmt;
use std::io::Read;
use std::path::Path;

use cofferdam_linux::trust::{self, Secrecy};
use hmac::{Hmac, Mac};
use rustix::fs::{AtFlags, CWD};
use sha2::Sha256;

use crate::error::failed;
use crate::{Digest, Error, Result, files};

/// The minimum length of a key in bytes, equal to the size of its codes.
const MIN_LENGTH: usize = 32;
/// The maximum size of a key file in bytes.
const MAX_FILE_SIZE: u64 = 4096;

/// A secret that signs and verifies lines. No message or debug output contains it.
pub struct Key(Vec<u8>);

impl Key {
    /// Reads a key from a file of 32 to 4096 bytes, as written by `head -c 32 /dev/urandom`. Drops a line break at the
    /// end of a longer file.
    ///
    /// Fails unless the file is regular, belongs to root or the current user and has mode 0600 or less. Does not follow
    /// a symbolic link.
    pub fn read(path: &Path) -> Result<Self> {
        const SHOWN: &str = "the key file";
        let file = files::open_regular(CWD, path, SHOWN)?;
        let stat = rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH).map_err(failed("inspect", SHOWN))?;
        if stat.st_mode & 0o077 != 0 {
            return Err(Error::Key {
                reason: "others can read its file; set its mode to 600, and create a new key if it was read",
            });
        }
        if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Error::Key { reason: "its file belongs to another user; create your own" });
        }
        trust::check(path, Secrecy::Secret)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(failed("read", SHOWN))?;
        if bytes.len() as u64 > MAX_FILE_SIZE {
            return Err(Error::Key { reason: "its file is longer than 4096 bytes; 32 random bytes are enough" });
        }
        // Of 32 random bytes the last may look like a line break.
        if bytes.len() > MIN_LENGTH && bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Self::new(bytes)
    }

    /// Creates a key from at least 32 bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() < MIN_LENGTH {
            return Err(Error::Key { reason: "it is shorter than 32 bytes; make it with head -c 32 /dev/urandom" });
        }
        Ok(Self(bytes))
    }

    /// Returns a public identifier of the key.
    pub fn id(&self) -> Digest {
        // Lines begin with `{`, so no line has the same code as this text.
        self.sign(b"cofferdam audit: name of the key")
    }

    /// Returns the code of a line's bytes.
    pub(crate) fn sign(&self, line: &[u8]) -> Digest {
        Digest::from_bytes(self.mac(line).finalize().into_bytes().into())
    }

    /// Compares a code with that of a line's bytes, in constant time.
    pub(crate) fn verify(&self, line: &[u8], code: &Digest) -> bool {
        self.mac(line).verify_slice(code.as_bytes()).is_ok()
    }

    fn mac(&self, line: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC accepts keys of any length");
        mac.chain_update(line)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Codes computed with Python's `hmac`; the second is case 6 of RFC 4231. Existing logs depend on them.
    #[test]
    fn codes_are_hmac_sha256() {
        let short = Key::new(vec![7; 32]).unwrap();
        assert_eq!(short.id().to_string(), "cb98d48354272655c658fe0e29e4f42d26a35bbefd6317fc89e09d5c044e46b1");
        let long = Key::new(vec![0xaa; 131]).unwrap();
        let line = b"Test Using Larger Than Block-Size Key - Hash Key First";
        let code = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54".parse().unwrap();
        assert_eq!(long.sign(line), code);
        assert!(long.verify(line, &code) && !long.verify(line, &Digest::ZERO) && !short.verify(line, &code));
    }

    #[test]
    fn only_private_files_are_keys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let put = |bytes: &[u8], mode| {
            // A read-only key file is not written to again.
            let _ = fs::remove_file(&path);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Key::read(&path)
        };
        let id = put(&[7; 32], 0o600).unwrap().id();
        assert_eq!(put(&[&[7; 32][..], b"\n"].concat(), 0o400).unwrap().id(), id);
        assert_ne!(put(&[8; 32], 0o600).unwrap().id(), id);
        let random = [&[7; 31][..], b"\n"].concat();
        assert_eq!(put(&random, 0o600).unwrap().id(), Key::new(random.clone()).unwrap().id());
        assert_eq!(put(&[&random[..], b"\n"].concat(), 0o600).unwrap().id(), Key::new(random).unwrap().id());
        for (bytes, mode) in [(&[7; 31][..], 0o600), (&[7; 4097], 0o600), (&[7; 32], 0o640), (&[7; 32], 0o604)] {
            assert!(matches!(put(bytes, mode), Err(Error::Key { .. })), "{} {mode:o}", bytes.len());
        }
        put(&[7; 32], 0o600).unwrap();
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(Key::read(&link).is_err());
        assert!(Key::read(directory.path()).is_err());
        assert!(!format!("{:?}", Key::new(vec![7; 32]).unwrap()).contains('7'));
    }
}

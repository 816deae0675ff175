//! Keys that sign packages: Ed25519, in files that other tools read, too.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cofferdam_linux::named;
use cofferdam_util::{hex, sha256};
use pem::Pem;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

use super::error::{PackageError, Result, io};

/// The maximum size of a key file.
const MAX_KEY_FILE: u64 = 4096;
/// The tags of PEM.
const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";
/// The DER of a public key's structure, which 32 bytes follow.
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The beginning of a signed message, so that a signature of a package is none of anything else.
const CONTEXT: &str = "cofferdam plugin package 1\n";

/// The public key of a signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads a key from a file with PEM.
    pub fn read(path: &Path) -> Result<Self> {
        let bad = |reason| PackageError::KeyFile { path: path.to_owned(), reason };
        let text = bounded(named::read(path).map_err(io("read", path))?).map_err(io("read", path))?;
        let pem = pem::parse(&*text).map_err(|_| bad("it is not PEM"))?;
        if pem.tag() == PRIVATE {
            return Err(bad("it has a private key, and a public one is needed"));
        }
        let key = pem.contents().strip_prefix(&SPKI).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or_else(|| bad("it has no public key of Ed25519"))
    }

    /// Returns the key as PEM.
    pub fn to_pem(&self) -> String {
        pem::encode(&Pem::new(PUBLIC, [&SPKI[..], &self.0].concat()))
    }

    /// Returns the SHA-256 of the key.
    pub fn fingerprint(&self) -> String {
        sha256::of(self.0)
    }

    /// Returns true if `signature` signs the digest of a package.
    pub(crate) fn verifies(&self, digest: &str, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message(digest).as_bytes(), signature).is_ok()
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut key = [0; 32];
        hex::decode(text.as_bytes(), &mut key).map(|()| Self(key))
    }

    pub(crate) fn to_hex(self) -> String {
        hex::encode(self.0)
    }
}

/// A private key. It is never printed.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Creates a key, its file, and the file of its public key beside it, with `.pub` added to the name. Only its owner
    /// can read the private key. Replaces no file.
    pub fn create(path: &Path) -> Result<(PublicKey, PathBuf)> {
        let failed = |_| PackageError::KeyFile { path: path.to_owned(), reason: "the host has no random numbers" };
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let private = Zeroizing::new(pem::encode(&Pem::new(PRIVATE, document.as_ref())));
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(|_| failed(ring::error::Unspecified))?;
        let key = Self(pair).public();
        let beside = PathBuf::from(format!("{}.pub", path.display()));
        if beside.symlink_metadata().is_ok() {
            return Err(PackageError::Exists { path: beside });
        }
        create(path, 0o600, private.as_bytes())?;
        create(&beside, 0o644, key.to_pem().as_bytes())?;
        Ok((key, beside))
    }

    /// Reads a key from a file with PKCS#8 in PEM. Refuses a file that another user can read or owns.
    pub fn read(path: &Path) -> Result<Self> {
        let bad = |reason| PackageError::KeyFile { path: path.to_owned(), reason };
        let file = named::read(path).map_err(io("read", path))?;
        let found = file.metadata().map_err(io("read", path))?;
        if found.mode() & 0o077 != 0 {
            return Err(bad("other users can read it; run 'chmod 600' on it, or create a new key"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() && found.uid() != 0 {
            return Err(bad("it belongs to another user"));
        }
        let text = bounded(file).map_err(io("read", path))?;
        let pem = pem::parse(&*text).map_err(|_| bad("it is not PEM"))?;
        let der = Zeroizing::new(pem.into_contents());
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map(Self).map_err(|_| bad("it has no private key of Ed25519"))
    }

    /// Returns a key that is always the same.
    #[cfg(feature = "fuzz")]
    pub(crate) fn fixed() -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed has 32 bytes"))
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(key)
    }

    pub(crate) fn sign(&self, digest: &str) -> String {
        hex::encode(self.0.sign(message(digest).as_bytes()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(hidden)")
    }
}

fn message(digest: &str) -> String {
    format!("{CONTEXT}{digest}")
}

fn bounded(file: File) -> io::Result<Zeroizing<Vec<u8>>> {
    // With this capacity no copy of a part remains in freed memory.
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_KEY_FILE as usize + 1));
    file.take(MAX_KEY_FILE).read_to_end(&mut text)?;
    Ok(text)
}

fn create(path: &Path, mode: u32, text: &[u8]) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => PackageError::Exists { path: path.to_owned() },
        _ => io("create", path)(error),
    })?;
    file.write_all(text).and_then(|()| file.sync_all()).map_err(io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn key_path() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().canonicalize().unwrap().join("key");
        (temp, path)
    }

    #[test]
    fn a_created_key_is_private_and_signs_for_its_public_key_alone() {
        let (_temp, path) = key_path();
        let (public, beside) = SigningKey::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(SigningKey::create(&path), Err(PackageError::Exists { .. })));
        let key = SigningKey::read(&path).unwrap();
        assert_eq!((key.public(), PublicKey::read(&beside).unwrap()), (public, public));
        let mut signature = [0; 64];
        hex::decode(key.sign("digest").as_bytes(), &mut signature).unwrap();
        assert!(public.verifies("digest", &signature) && !public.verifies("other", &signature));
        let (_temp, other) = key_path();
        assert!(!SigningKey::create(&other).unwrap().0.verifies("digest", &signature));
        assert_eq!(PublicKey::from_hex(&public.to_hex()), Some(public));
        assert_eq!(format!("{key:?}"), "SigningKey(hidden)");
    }

    #[test]
    fn key_files_that_others_read_or_that_are_no_keys_are_refused() {
        let (_temp, path) = key_path();
        let (_, beside) = SigningKey::create(&path).unwrap();
        assert!(matches!(PublicKey::read(&path), Err(PackageError::KeyFile { .. })));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let error = SigningKey::read(&path).unwrap_err();
        assert!(error.to_string().contains("other users can read it"), "{error}");
        fs::set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(SigningKey::read(&beside), Err(PackageError::KeyFile { .. })));
        fs::write(&beside, "x".repeat(1 << 20)).unwrap();
        assert!(matches!(PublicKey::read(&beside), Err(PackageError::KeyFile { .. })));
    }
}

//! The key of a log, by which only those who have it can make lines.

use std::fmt;
use std::io::Read;
use std::path::Path;

use cofferdam_linux::trust::{self, Secrecy};
use rustix::fs::{AtFlags, CWD};

use crate::error::failed;
use crate::hash::{Digest, hmac};
use crate::place;
use crate::{Error, Result};

/// The shortest key: as long as what it makes.
const SHORTEST: usize = 32;
/// The longest key file.
const LONGEST: u64 = 4096;

/// A secret by which lines are signed and checked. It shows in no message.
pub struct Key(Vec<u8>);

impl Key {
    /// Reads a key: the bytes of a file, without one line break at its end if it is longer than the shortest key.
    ///
    /// The file must be regular, belong to root or to who runs this, and be readable by nobody else (mode 0600 or less);
    /// a symbolic link is refused. 32 to 4096 bytes, as `head -c 32 /dev/urandom` gives them.
    pub fn read(path: &Path) -> Result<Self> {
        const SHOWN: &str = "the key file";
        let file = place::open_regular(CWD, path, SHOWN)?;
        let stat = rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH).map_err(failed("look at", SHOWN))?;
        if stat.st_mode & 0o077 != 0 {
            return Err(Error::Key {
                reason: "others can read its file; chmod 600 it, and make a new one if they did",
            });
        }
        if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Error::Key { reason: "its file belongs to somebody else; make one of your own" });
        }
        trust::check(path, Secrecy::Secret)?;
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed("read", SHOWN))?;
        if bytes.len() as u64 > LONGEST {
            return Err(Error::Key { reason: "its file is longer than 4096 bytes; 32 random bytes are enough" });
        }
        // Of 32 random bytes the last may look like a line break.
        if bytes.len() > SHORTEST && bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Self::new(bytes)
    }

    /// A key of at least 32 bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() < SHORTEST {
            return Err(Error::Key { reason: "it is shorter than 32 bytes; make it with head -c 32 /dev/urandom" });
        }
        Ok(Self(bytes))
    }

    /// What tells this key from others and does not give it away.
    pub fn id(&self) -> Digest {
        hmac(&self.0, &[b"cofferdam audit: name of the key"])
    }

    /// The code of a line's bytes. The bytes begin with `{`, those of [`Key::id`] do not.
    pub(crate) fn code(&self, line: &[u8]) -> Digest {
        hmac(&self.0, &[line])
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

    #[test]
    fn only_private_files_are_keys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let put = |bytes: &[u8], mode| {
            // One that was made read-only is not written to again.
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

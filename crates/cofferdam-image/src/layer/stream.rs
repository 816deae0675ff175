//! Digests, hashing readers and decompression.

use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use cofferdam_util::{hex, sha256};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{LayerError, Result, bad};

/// A SHA-256 digest in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha(pub(crate) String);

impl Sha {
    /// Parses `sha256:` and 64 lower-case digits.
    ///
    /// # Errors
    ///
    /// [`LayerError::Invalid`] for any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let found = text.strip_prefix("sha256:").filter(|digits| sha256::is_digest(digits));
        let invalid = || bad(format!("'{}' is not a supported digest: only sha256 is supported", text.escape_debug()));
        found.map(|digits| Self(digits.to_owned())).ok_or_else(invalid)
    }

    /// Returns the digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha256::of(bytes))
    }

    /// Returns the digits, without `sha256:`.
    #[must_use]
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// Returns the path of a file with this digest in an image layout.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new("blobs/sha256").join(&self.0)
    }
}

impl fmt::Display for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl TryFrom<String> for Sha {
    type Error = LayerError;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<Sha> for String {
    fn from(sha: Sha) -> Self {
        sha.to_string()
    }
}

pub(crate) fn wrong_digest(digest: &Sha) -> LayerError {
    bad(format!("the image's file {digest} hashes to something else"))
}

/// A reader that hashes its data, and fails above a limit.
pub(crate) struct Hashed<'a, R> {
    from: R,
    hasher: Sha256,
    left: &'a mut u64,
}

impl<'a, R: Read> Hashed<'a, R> {
    pub(crate) fn new(from: R, left: &'a mut u64) -> Self {
        Self { from, hasher: Sha256::new(), left }
    }

    /// Reads the rest, and returns the hash of everything.
    pub(crate) fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex::encode(self.hasher.finalize()))
    }
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        let left = self.left.checked_sub(length as u64);
        *self.left = left.ok_or_else(|| io::Error::other("it is larger than allowed"))?;
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }
}

/// The compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    /// A plain tar.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstandard,
}

impl Compression {
    /// Detects the compression from the first four bytes.
    pub(crate) fn of(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] => Self::Zstandard,
            _ => Self::None,
        }
    }
}

/// Decompresses a layer in the format that its first bytes indicate.
pub(crate) fn unpacked<'a>(mut from: Box<dyn Read + 'a>) -> io::Result<Box<dyn Read + 'a>> {
    let mut first = Vec::new();
    from.by_ref().take(4).read_to_end(&mut first)?;
    let compression = Compression::of(&first);
    let whole = BufReader::with_capacity(1 << 17, io::Cursor::new(first).chain(from));
    Ok(match compression {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        #[cfg(not(feature = "zstd"))]
        Compression::Zstandard => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build cannot decompress Zstandard; build with `--features images`",
            ));
        }
        // The decoder refuses frames that need more than 128 MiB of memory.
        #[cfg(feature = "zstd")]
        Compression::Zstandard => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
        Compression::None => Box::new(whole),
    })
}

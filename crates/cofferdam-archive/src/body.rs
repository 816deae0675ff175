//! The body of an archive: everything after the head, in clear or sealed, and the final hash of the whole archive.

use std::io::{Read, Write};

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::error::{ArchiveError, Result, io};
use crate::seal::{Opener, Sealer, fill};

/// A writer for the body.
pub(crate) struct BodyWriter<W> {
    out: W,
    sealer: Option<Sealer>,
    hasher: Sha256,
    written: u64,
}

impl<W: Write> BodyWriter<W> {
    /// Writes the head, which is the first input of the whole archive's hash.
    pub(crate) fn new(out: W, head: &[u8], sealer: Option<Sealer>) -> Result<Self> {
        let mut body = Self { out, sealer: None, hasher: Sha256::new(), written: 0 };
        body.write(head)?;
        Ok(Self { sealer, ..body })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.pass(bytes)
    }

    /// Returns the number of bytes written to the archive so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes the hash of everything written so far and ends the archive.
    pub(crate) fn finish(mut self) -> Result<(u64, Digest)> {
        let digest = Digest::finish(self.hasher.clone());
        self.pass(digest.as_bytes())?;
        if let Some(sealer) = &mut self.sealer {
            put(&mut self.out, sealer.seal(true)?, &mut self.written)?;
        }
        self.out.flush().map_err(io("write the archive", "archive"))?;
        Ok((self.written, digest))
    }

    fn pass(&mut self, mut bytes: &[u8]) -> Result<()> {
        let Some(sealer) = &mut self.sealer else { return put(&mut self.out, bytes, &mut self.written) };
        loop {
            bytes = sealer.take(bytes);
            if bytes.is_empty() {
                return Ok(());
            }
            // The last chunk is sealed differently, and more bytes prove that this chunk is not the last.
            put(&mut self.out, sealer.seal(false)?, &mut self.written)?;
            sealer.clear();
        }
    }
}

fn put(out: &mut impl Write, bytes: &[u8], written: &mut u64) -> Result<()> {
    out.write_all(bytes).map_err(io("write the archive", "archive"))?;
    *written += bytes.len() as u64;
    Ok(())
}

/// A reader for the body.
pub(crate) struct BodyReader<R> {
    input: R,
    opener: Option<Opener>,
    hasher: Sha256,
    read: u64,
}

impl<R: Read> BodyReader<R> {
    pub(crate) fn new(input: R, head: &[u8], opener: Option<Opener>) -> Self {
        Self { input, opener, hasher: Sha256::new_with_prefix(head), read: head.len() as u64 }
    }

    pub(crate) fn read_exact(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.fetch(bytes)?;
        self.hasher.update(&*bytes);
        Ok(())
    }

    /// Returns the number of bytes read from the archive so far, without the authentication tags.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Compares the hash of everything read so far and checks that the archive ends here.
    pub(crate) fn finish(mut self) -> Result<(u64, Digest)> {
        let digest = Digest::finish(std::mem::take(&mut self.hasher));
        let mut found = [0; Digest::LENGTH];
        self.fetch(&mut found)?;
        if found != *digest.as_bytes() {
            return Err(ArchiveError::Damaged { what: "the hash of the whole archive" });
        }
        let more = match &self.opener {
            Some(opener) => !opener.is_at_end(),
            None => fill(&mut self.input, &mut [0])? > 0,
        };
        if more {
            return Err(ArchiveError::TrailingBytes);
        }
        Ok((self.read, digest))
    }

    fn fetch(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.read += bytes.len() as u64;
        match &mut self.opener {
            Some(opener) => opener.read_exact(bytes, &mut self.input),
            None if fill(&mut self.input, bytes)? < bytes.len() => Err(ArchiveError::Truncated),
            None => Ok(()),
        }
    }
}

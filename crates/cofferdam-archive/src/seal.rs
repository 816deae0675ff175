//! Encryption of the body in chunks. Each chunk authenticates its position and whether it is the last (the STREAM
//! construction over ChaCha20-Poly1305), and is bound to the head.
//!
//! A chunk that was changed, moved, duplicated or left out does not open. Nor does any chunk below another head.
//! Truncation between chunks and trailing bytes are distinguished from damage: such a chunk opens with the opposite
//! last-chunk flag.

use std::io::Read;

use aead_stream::{NewStream, StreamBE32, StreamPrimitive};
use chacha20poly1305::ChaCha20Poly1305;

use crate::digest::Digest;
use crate::error::{ArchiveError, Result, damaged, io};
use crate::key::Derived;

/// Size of a chunk in clear, in bytes. Only the last may be shorter.
pub(crate) const CHUNK: usize = 64 << 10;
/// Size of the authentication tag of each chunk, in bytes.
pub(crate) const TAG: usize = 16;

type Stream = StreamBE32<ChaCha20Poly1305>;

fn stream(derived: &Derived) -> Stream {
    // The key belongs to this archive alone, so the constant part of the nonce may be the same in all archives.
    let nonce = [0; 7];
    Stream::new((&*derived.stream).into(), &nonce.into())
}

/// Returns the next chunk number. An archive with too many chunks for the counter is longer than all parts together can
/// be.
fn after(position: u32) -> Result<u32> {
    position.checked_add(1).ok_or(damaged("too many chunks"))
}

/// An encryptor of chunks.
pub(crate) struct Sealer {
    stream: Stream,
    head: Digest,
    position: u32,
    buffer: Vec<u8>,
}

impl Sealer {
    /// Creates a sealer. `head` is the hash of the head, to which all chunks are bound.
    pub(crate) fn new(derived: &Derived, head: Digest) -> Self {
        Self { stream: stream(derived), head, position: 0, buffer: Vec::with_capacity(CHUNK + TAG) }
    }

    /// Takes as many of `bytes` as fit and returns the rest.
    pub(crate) fn take<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.buffer.len()));
        self.buffer.extend_from_slice(now);
        later
    }

    /// Seals the collected bytes and returns them. Call [`clear`](Self::clear) before taking more.
    pub(crate) fn seal(&mut self, last: bool) -> Result<&[u8]> {
        let sealed = self.stream.encrypt_in_place(self.position, last, self.head.as_bytes(), &mut self.buffer);
        sealed.map_err(|_| damaged("a chunk that cannot be sealed"))?;
        self.position = after(self.position)?;
        Ok(&self.buffer)
    }

    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
    }
}

/// A decryptor of chunks.
pub(crate) struct Opener {
    stream: Stream,
    head: Digest,
    position: u32,
    /// The next chunk as it was read. Empty after the last.
    ahead: Vec<u8>,
    clear: Vec<u8>,
    at: usize,
}

impl Opener {
    pub(crate) fn new(derived: &Derived, head: Digest, input: &mut impl Read) -> Result<Self> {
        let mut opener =
            Self { stream: stream(derived), head, position: 0, ahead: Vec::new(), clear: Vec::new(), at: 0 };
        opener.ahead = read_chunk(input)?;
        if opener.ahead.is_empty() {
            return Err(ArchiveError::Truncated);
        }
        Ok(opener)
    }

    /// Fills `bytes` with decrypted data.
    pub(crate) fn read_exact(&mut self, mut bytes: &mut [u8], input: &mut impl Read) -> Result<()> {
        while !bytes.is_empty() {
            if self.at == self.clear.len() {
                self.open(input)?;
            }
            let now = bytes.len().min(self.clear.len() - self.at);
            let (filled, rest) = bytes.split_at_mut(now);
            filled.copy_from_slice(&self.clear[self.at..self.at + now]);
            self.at += now;
            bytes = rest;
        }
        Ok(())
    }

    /// Returns true if all decrypted data was read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.clear.len() && self.ahead.is_empty()
    }

    fn open(&mut self, input: &mut impl Read) -> Result<()> {
        if self.ahead.is_empty() {
            return Err(damaged("a body shorter than its contents"));
        }
        let next = if self.ahead.len() == CHUNK + TAG { read_chunk(input)? } else { Vec::new() };
        let (chunk, last) = (std::mem::replace(&mut self.ahead, next), self.ahead_is_last());
        match self.opened(&chunk, last) {
            Some(clear) if clear.is_empty() => return Err(damaged("an empty chunk")),
            Some(clear) => self.clear = clear,
            None if self.opened(&chunk, !last).is_none() => return Err(damaged("a sealed chunk")),
            None if last => return Err(ArchiveError::Truncated),
            None => return Err(ArchiveError::TrailingBytes),
        }
        self.at = 0;
        self.position = after(self.position)?;
        Ok(())
    }

    fn ahead_is_last(&self) -> bool {
        self.ahead.is_empty()
    }

    fn opened(&self, chunk: &[u8], last: bool) -> Option<Vec<u8>> {
        let mut clear = chunk.to_vec();
        self.stream.decrypt_in_place(self.position, last, self.head.as_bytes(), &mut clear).ok()?;
        Some(clear)
    }
}

fn read_chunk(input: &mut impl Read) -> Result<Vec<u8>> {
    let mut chunk = vec![0; CHUNK + TAG];
    let got = fill(input, &mut chunk)?;
    chunk.truncate(got);
    Ok(chunk)
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes read.
pub(crate) fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more.min(buffer.len() - got),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io("read the archive", "archive")(error)),
        }
    }
    Ok(got)
}

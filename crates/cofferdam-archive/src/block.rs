//! The contents of a part in blocks of bounded size, each compressed on its own, followed by the part's hash.
//!
//! ```text
//! (unpacked u32 | packed u32 | bytes)* | 0 u32 | 0 u32 | SHA-256
//! ```

use std::io::{Read, Write};

use zstd::bulk::{Compressor, Decompressor};

use crate::body::{BodyReader, BodyWriter};
use crate::digest::Digest;
use crate::error::{ArchiveError, Result, damaged, io};
use crate::head::u32_at;
use crate::part::Part;

/// The maximum uncompressed size of a block, in bytes.
pub(crate) const BLOCK: usize = 1 << 20;

/// A compressor for blocks. One instance serves all parts.
pub(crate) struct Packer {
    compressor: Compressor<'static>,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

impl Packer {
    /// Creates a packer with a compression level from 1 to 19.
    pub(crate) fn new(level: i32) -> Result<Self> {
        let compressor = Compressor::new(level).map_err(|_| ArchiveError::BadLevel { level })?;
        Ok(Self { compressor, raw: Vec::with_capacity(BLOCK), packed: vec![0; BLOCK] })
    }

    /// Returns the collected bytes, compressed if that makes them smaller.
    fn pack(&mut self) -> &[u8] {
        // Compression fails if the result does not fit, so the bytes are then stored uncompressed.
        match self.compressor.compress_to_buffer(&self.raw, &mut self.packed[..]) {
            Ok(length) if length < self.raw.len() => &self.packed[..length],
            _ => &self.raw,
        }
    }
}

/// A writer for the contents of a part.
pub(crate) struct BlockWriter<'a, W> {
    body: &'a mut BodyWriter<W>,
    packer: &'a mut Packer,
}

impl<'a, W: Write> BlockWriter<'a, W> {
    pub(crate) fn new(body: &'a mut BodyWriter<W>, packer: &'a mut Packer) -> Self {
        packer.raw.clear();
        Self { body, packer }
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.packer.raw.len()));
            self.packer.raw.extend_from_slice(now);
            if self.packer.raw.len() == BLOCK {
                self.flush()?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Returns the number of bytes written to the archive so far.
    pub(crate) fn written(&self) -> u64 {
        self.body.written()
    }

    /// Ends the part with its hash.
    pub(crate) fn finish(mut self, digest: Digest) -> Result<()> {
        if !self.packer.raw.is_empty() {
            self.flush()?;
        }
        self.body.write(&[0; 8])?;
        self.body.write(digest.as_bytes())
    }

    fn flush(&mut self) -> Result<()> {
        let unpacked = self.packer.raw.len();
        let packed = self.packer.pack();
        // Both are at most the size of a block.
        self.body.write(&(unpacked as u32).to_le_bytes())?;
        self.body.write(&(packed.len() as u32).to_le_bytes())?;
        self.body.write(packed)?;
        self.packer.raw.clear();
        Ok(())
    }
}

/// A decompressor for blocks. One instance serves all parts.
pub(crate) struct Unpacker {
    decompressor: Decompressor<'static>,
    raw: Vec<u8>,
    packed: Vec<u8>,
    /// Offset of the first byte of `raw` that has not been read.
    at: usize,
}

impl Unpacker {
    pub(crate) fn new() -> Result<Self> {
        let decompressor = Decompressor::new().map_err(io("prepare to unpack", "archive"))?;
        Ok(Self { decompressor, raw: Vec::new(), packed: Vec::new(), at: 0 })
    }
}

/// A reader for the contents of a part.
pub(crate) struct BlockReader<'a, R> {
    body: &'a mut BodyReader<R>,
    unpacker: &'a mut Unpacker,
    part: &'a Part,
}

impl<'a, R: Read> BlockReader<'a, R> {
    pub(crate) fn new(body: &'a mut BodyReader<R>, unpacker: &'a mut Unpacker, part: &'a Part) -> Self {
        unpacker.raw.clear();
        unpacker.at = 0;
        Self { body, unpacker, part }
    }

    /// Fills `bytes` with contents. Fails with [`ArchiveError::SizeLies`] if there are not enough.
    pub(crate) fn read_exact(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.unpacker.at == self.unpacker.raw.len() && !self.load()? {
                return Err(self.size_mismatch("shorter"));
            }
            let (raw, at) = (&self.unpacker.raw, self.unpacker.at);
            let now = bytes.len().min(raw.len() - at);
            let (filled, rest) = bytes.split_at_mut(now);
            filled.copy_from_slice(&raw[at..at + now]);
            self.unpacker.at += now;
            bytes = rest;
        }
        Ok(())
    }

    /// Returns the number of bytes read from the archive so far.
    pub(crate) fn read(&self) -> u64 {
        self.body.read()
    }

    /// Reads the end of the contents and compares their hash.
    pub(crate) fn finish(mut self, digest: Digest) -> Result<()> {
        if self.unpacker.at < self.unpacker.raw.len() || self.load()? {
            return Err(self.size_mismatch("longer"));
        }
        let mut found = [0; Digest::LENGTH];
        self.body.read_exact(&mut found)?;
        if found != *digest.as_bytes() {
            return Err(damaged("the hash of a part"));
        }
        Ok(())
    }

    /// Loads the next block. Returns false at the end of the contents.
    fn load(&mut self) -> Result<bool> {
        let mut sizes = [0; 8];
        self.body.read_exact(&mut sizes)?;
        let (unpacked, packed) = (u32_at(&sizes, 0) as usize, u32_at(&sizes, 4) as usize);
        if (unpacked, packed) == (0, 0) {
            return Ok(false);
        }
        if unpacked > BLOCK || packed == 0 || packed > unpacked {
            return Err(damaged("the size of a block"));
        }
        let Unpacker { decompressor, raw, packed: buffer, at } = &mut *self.unpacker;
        raw.resize(unpacked, 0);
        *at = 0;
        if packed == unpacked {
            self.body.read_exact(raw)?;
            return Ok(true);
        }
        buffer.resize(packed, 0);
        self.body.read_exact(buffer)?;
        match decompressor.decompress_to_buffer(buffer, &mut raw[..]) {
            Ok(length) if length == unpacked => Ok(true),
            _ => Err(damaged("the uncompressed size of a block")),
        }
    }

    fn size_mismatch(&self, found: &'static str) -> ArchiveError {
        ArchiveError::SizeLies { part: self.part.name.to_string(), declared: self.part.size, found }
    }
}

//! Builder for hostile archives: the hashes match whatever the archive declares. For tests and fuzzing, because random
//! bytes fail the hash checks and never reach the others.

use sha2::{Digest as _, Sha256};

use crate::block::{BLOCK, BlockWriter, Packer};
use crate::body::BodyWriter;
use crate::digest::Digest;
use crate::error::Result;
use crate::head::MAGIC;
use crate::key::Key;
use crate::record::{PAGE, RECORD, Record};
use crate::seal::Sealer;

/// A description of an archive to build. Nothing in it is checked.
#[derive(Debug, Clone)]
pub struct Forged {
    /// Version of the format.
    pub version: u32,
    /// Flags. A key sets the first bit in addition.
    pub flags: u32,
    /// The declared number of parts, if it differs from the actual one.
    pub count: Option<u32>,
    /// Value of the reserved field.
    pub zero: u32,
    /// The salt from which the key of an encrypted archive is derived.
    pub salt: [u8; 32],
    /// The parts.
    pub parts: Vec<ForgedPart>,
}

/// A part of a [`Forged`] archive.
#[derive(Debug, Clone)]
pub struct ForgedPart {
    /// Code of the part's kind.
    pub kind: u8,
    /// 1 if the part has a base, 0 if not.
    pub based: u8,
    /// Value of the reserved field.
    pub zero: [u8; 6],
    /// The declared size.
    pub size: u64,
    /// The hash of the part's base.
    pub base: [u8; 32],
    /// The part's name, padded with zeroes.
    pub name: [u8; 32],
    /// The part's contents, to be packed in blocks.
    pub contents: Vec<u8>,
    /// Raw blocks, written after those of the contents.
    pub blocks: Vec<u8>,
}

impl ForgedPart {
    /// Creates an ordinary part. Truncates a name that is too long.
    pub fn new(name: &str, kind: u8, size: u64, contents: Vec<u8>) -> Self {
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Self { kind, based: 0, zero: [0; 6], size, base: [0; 32], name: bytes, contents, blocks: Vec::new() }
    }

    fn entry(&self) -> Vec<u8> {
        let flags = [&[self.kind, self.based][..], &self.zero].concat();
        [&flags[..], &self.size.to_le_bytes(), &self.base, &self.name].concat()
    }

    /// Computes the hash that a reader computes, as far as a reader gets.
    fn digest(&self) -> Digest {
        if self.kind < 3 {
            return Digest::of(&self.contents);
        }
        let (mut hasher, mut rest, mut left) = (Sha256::new(), &self.contents[..], self.size);
        while let Some((bytes, after)) = rest.split_first_chunk::<RECORD>() {
            hasher.update(bytes);
            rest = after;
            let Some(record) = Record::decode(bytes) else { break };
            let covered = left.min(u64::from(record.pages()) * PAGE as u64);
            left -= covered;
            if let Record::Data(_) = record {
                let (pages, after) = rest.split_at(rest.len().min(usize::try_from(covered).unwrap_or(usize::MAX)));
                pages.chunks(PAGE).for_each(|page| hasher.update(Digest::of(page).as_bytes()));
                rest = after;
            }
        }
        Digest::finish(hasher)
    }
}

impl Forged {
    /// Creates an ordinary archive of these parts.
    pub fn new(parts: Vec<ForgedPart>) -> Self {
        Self { version: 1, flags: 0, count: None, zero: 0, salt: [0; 32], parts }
    }

    /// Returns the archive's bytes, encrypted if there is a key.
    pub fn bytes(&self, key: Option<&Key>) -> Result<Vec<u8>> {
        let derived = key.map(|key| key.derive(&self.salt)).transpose()?;
        let head = self.head(derived.as_ref().map_or([0; 32], |derived| derived.check), key.is_some());
        let sealer = derived.as_ref().map(|derived| Sealer::new(derived, Digest::of(&head)));
        let mut out = Vec::new();
        let mut body = BodyWriter::new(&mut out, &head, sealer)?;
        let mut packer = Packer::new(1)?;
        for part in &self.parts {
            if part.blocks.is_empty() {
                let mut blocks = BlockWriter::new(&mut body, &mut packer);
                blocks.write(&part.contents)?;
                blocks.finish(part.digest())?;
            } else {
                part.contents.chunks(BLOCK).try_for_each(|block| {
                    let size = (block.len() as u32).to_le_bytes();
                    body.write(&[&size, &size, block].concat())
                })?;
                body.write(&part.blocks)?;
                body.write(&[&[0; 8], &part.digest().as_bytes()[..]].concat())?;
            }
        }
        body.finish()?;
        Ok(out)
    }

    fn head(&self, check: [u8; 32], encrypted: bool) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let count = self.count.unwrap_or(self.parts.len() as u32);
        for number in [self.version, self.flags | u32::from(encrypted), count, self.zero] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.salt);
        bytes.extend(check);
        self.parts.iter().for_each(|part| bytes.extend(part.entry()));
        let digest = Digest::of(&bytes);
        bytes.extend(digest.as_bytes());
        bytes
    }
}

/// Encodes a record: 1 same, 2 zero, 3 data, 4 copy.
pub fn record(kind: u8, pages: u32, from: u64) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &pages.to_le_bytes(), &from.to_le_bytes()].concat()
}

/// Encodes a block with the declared sizes, correct or not.
pub fn block(unpacked: u32, packed: u32, bytes: &[u8]) -> Vec<u8> {
    [&unpacked.to_le_bytes()[..], &packed.to_le_bytes(), bytes].concat()
}

/// Compresses bytes as in a block.
pub fn packed(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd::bulk::compress(bytes, 1)
}

//! The writer of archives.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

use crate::base::{Base, regular_size};
use crate::block::{BLOCK, BlockWriter, Packer};
use crate::body::BodyWriter;
use crate::dedup::{self, Table};
use crate::digest::Digest;
use crate::error::{ArchiveError, Result, io};
use crate::head::{Head, Lock, check_parts};
use crate::key::{Key, SALT};
use crate::pages;
use crate::part::{Kind, Name, Part};
use crate::progress::{Meter, Progress};
use crate::seal::Sealer;

/// Options for writing an archive.
#[derive(Debug)]
pub struct WriteOptions<'a> {
    /// Compression level, from 1 (fast) to 19 (small).
    pub level: i32,
    /// The key to encrypt with, if any.
    pub key: Option<&'a Key>,
    /// Number of distinct pages per part that are remembered for deduplication, at 48 bytes of memory each. Zero
    /// disables deduplication.
    pub remembered_pages: usize,
}

impl Default for WriteOptions<'_> {
    /// Returns level 1, no encryption, and about 900 MiB of distinct pages remembered.
    fn default() -> Self {
        Self { level: 1, key: None, remembered_pages: dedup::PAGES }
    }
}

/// The result of writing an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The archive's length, in bytes.
    pub bytes: u64,
    /// The final hash of the archive, over all bytes before it in clear.
    pub digest: Digest,
}

/// A writer that collects parts and writes them. The same parts and options produce the same bytes, unless they are
/// encrypted.
///
/// Files are read from their beginning up to the size that they had when they were added. Their cursors are ignored and
/// moved. The files must not change in the meantime.
#[derive(Debug)]
pub struct Writer<'a> {
    options: WriteOptions<'a>,
    parts: Vec<(Part, Content<'a>)>,
}

#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    Bytes(&'a [u8]),
    File(&'a File),
    Pages(&'a File, Option<&'a Base>),
}

impl<'a> Writer<'a> {
    /// Creates a writer without parts.
    pub fn new(options: WriteOptions<'a>) -> Result<Self> {
        if !(1..=19).contains(&options.level) {
            return Err(ArchiveError::BadLevel { level: options.level });
        }
        Ok(Self { options, parts: Vec::new() })
    }

    /// Adds a document, which is not interpreted. At most 4 MiB.
    pub fn json(&mut self, name: &str, bytes: &'a [u8]) -> Result<&mut Self> {
        self.add(name, Kind::Json, bytes.len() as u64, Content::Bytes(bytes))
    }

    /// Adds a device state. At most 1 GiB.
    pub fn state(&mut self, name: &str, file: &'a File) -> Result<&mut Self> {
        self.add(name, Kind::State, regular_size(file, name)?, Content::File(file))
    }

    /// Adds a memory. At most 8 TiB.
    pub fn memory(&mut self, name: &str, file: &'a File) -> Result<&mut Self> {
        self.add(name, Kind::Memory, regular_size(file, name)?, Content::Pages(file, None))
    }

    /// Adds a disk, of which only the pages that differ from its base are stored. Without a base, the pages that are
    /// not zero. At most 8 TiB.
    pub fn disk(&mut self, name: &str, file: &'a File, base: Option<&'a Base>) -> Result<&mut Self> {
        self.add(name, Kind::Disk, regular_size(file, name)?, Content::Pages(file, base))
    }

    fn add(&mut self, name: &str, kind: Kind, size: u64, content: Content<'a>) -> Result<&mut Self> {
        let base = match content {
            Content::Pages(_, base) => base.map(Base::id),
            _ => None,
        };
        let mut parts = self.parts.clone();
        parts.push((Part { name: Name::new(name)?, kind, size, base }, content));
        // Documents come first, so that they are readable without the rest.
        parts.sort_by_key(|(part, _)| part.kind != Kind::Json);
        check_parts(&declared(&parts))?;
        self.parts = parts;
        Ok(self)
    }

    /// Writes the archive. If this fails, the output is not an archive and the caller discards it.
    ///
    /// `watch` receives the progress and cancels with `Break`.
    pub fn write(self, out: impl Write, watch: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Written> {
        let derived = match self.options.key {
            Some(key) => {
                let salt = random()?;
                let derived = key.derive(&salt)?;
                Some((Lock { salt, check: derived.check }, derived))
            }
            None => None,
        };
        let head = Head { lock: derived.as_ref().map(|(lock, _)| *lock), parts: declared(&self.parts) }.encode();
        let sealer = derived.as_ref().map(|(_, derived)| Sealer::new(derived, Digest::of(&head)));
        let mut body = BodyWriter::new(out, &head, sealer)?;
        let mut packer = Packer::new(self.options.level)?;
        let mut meter = Meter::new(watch, self.parts.iter().map(|(part, _)| part.size).sum());
        for (part, content) in &self.parts {
            let mut blocks = BlockWriter::new(&mut body, &mut packer);
            let digest = match content {
                Content::Bytes(bytes) => {
                    blocks.write(bytes)?;
                    meter.advance(part.size, blocks.written())?;
                    Digest::of(bytes)
                }
                Content::File(file) => save_file(part, file, &mut blocks, &mut meter)?,
                Content::Pages(file, base) => {
                    let table = Table::new(self.options.remembered_pages);
                    pages::save(part, file, *base, table, &mut blocks, &mut meter)?
                }
            };
            blocks.finish(digest)?;
        }
        let (bytes, digest) = body.finish()?;
        Ok(Written { bytes, digest })
    }
}

fn declared(parts: &[(Part, Content<'_>)]) -> Vec<Part> {
    parts.iter().map(|(part, _)| part.clone()).collect()
}

fn random() -> Result<[u8; SALT]> {
    let mut salt = [0; SALT];
    getrandom::fill(&mut salt)
        .map_err(|error| io("get random bytes", "archive")(std::io::Error::other(error.to_string())))?;
    Ok(salt)
}

/// Saves a file as a whole.
fn save_file<W: Write>(
    part: &Part,
    file: &File,
    blocks: &mut BlockWriter<'_, W>,
    meter: &mut Meter<'_>,
) -> Result<Digest> {
    let (mut hasher, mut at, mut buffer) = (Sha256::new(), 0, vec![0; BLOCK]);
    while at < part.size {
        let now = (part.size - at).min(BLOCK as u64);
        let bytes = &mut buffer[..now as usize];
        file.read_exact_at(bytes, at).map_err(|error| pages::unread(error, part.name.as_str()))?;
        hasher.update(&*bytes);
        blocks.write(bytes)?;
        at += now;
        meter.advance(now, blocks.written())?;
    }
    if regular_size(file, part.name.as_str())? != part.size {
        return Err(ArchiveError::SourceChanged { part: part.name.to_string() });
    }
    Ok(Digest::finish(hasher))
}

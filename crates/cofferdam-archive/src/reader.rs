//! The reader of archives.
//!
//! ```text
//! open -- head, documents --> Reader -- verify  --> Verified
//!                                    -- restore --> Restored: files that were verified with everything else
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

use crate::base::Base;
use crate::block::{BLOCK, BlockReader, Unpacker};
use crate::body::BodyReader;
use crate::digest::Digest;
use crate::error::{ArchiveError, Result, io as io_error};
use crate::head::{Head, VERSION};
use crate::key::Key;
use crate::limits::Limits;
use crate::pages;
use crate::part::{Kind, Part};
use crate::progress::{Meter, Progress};
use crate::seal::Opener;
use crate::target::Target;

/// Options for reading an archive.
#[derive(Debug, Default)]
pub struct ReadOptions<'a> {
    /// The key of an encrypted archive. With a key, an unencrypted archive is refused.
    pub key: Option<&'a Key>,
    /// Maximum sizes.
    pub limits: Limits,
}

/// A document of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The document's entry in the head.
    pub part: Part,
    /// The content, uninterpreted.
    pub bytes: Vec<u8>,
}

/// A description of an archive from its head and documents only. These were compared with their own hashes, but the
/// rest was not read. Use it for display and for early refusals, and do not rely on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Version of the archive's format.
    pub version: u32,
    /// True if the archive is encrypted.
    pub encrypted: bool,
    /// Its parts, in order.
    pub parts: Vec<Part>,
    /// The documents. `None` for an encrypted archive without its key.
    pub documents: Option<Vec<Document>>,
}

/// The result of reading an archive to its end, with every hash compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// The final hash of the archive, over all bytes before it in clear.
    pub digest: Digest,
}

/// The restored contents of an archive that was verified as a whole.
#[derive(Debug)]
pub struct Restored {
    /// The documents, in order.
    pub documents: Vec<Document>,
    /// The other parts, in order, each with its file.
    pub files: Vec<(Part, File)>,
    /// The final hash of the archive.
    pub digest: Digest,
}

/// Reads the head, and the documents if they are readable, and no further. Without a key, an encrypted archive shows
/// the names, kinds and sizes of its parts and the hashes of bases, which are in clear.
pub fn inspect(mut input: impl Read, options: &ReadOptions<'_>) -> Result<Summary> {
    let (head, bytes) = Head::read(&mut input)?;
    if head.lock.is_some() && options.key.is_none() {
        options.limits.check(&head.parts)?;
        return Ok(Summary { version: VERSION, encrypted: true, parts: head.parts, documents: None });
    }
    Ok(Reader::with_head(input, options, head, &bytes)?.summary())
}

/// An open archive whose head and documents were read.
pub struct Reader<R> {
    head: Head,
    documents: Vec<Document>,
    body: BodyReader<R>,
    unpacker: Unpacker,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("parts", &self.head.parts).finish_non_exhaustive()
    }
}

/// A callback that returns the empty file to which a part is restored.
type Targets<'a> = &'a mut dyn FnMut(&Part) -> io::Result<File>;

impl<R: Read> Reader<R> {
    /// Reads the head and the documents. Refuses parts that are too large and a key that does not match.
    pub fn open(mut input: R, options: &ReadOptions<'_>) -> Result<Self> {
        let (head, bytes) = Head::read(&mut input)?;
        Self::with_head(input, options, head, &bytes)
    }

    fn with_head(mut input: R, options: &ReadOptions<'_>, head: Head, bytes: &[u8]) -> Result<Self> {
        options.limits.check(&head.parts)?;
        let opener = match (head.lock, options.key) {
            (None, None) => None,
            (None, Some(_)) => return Err(ArchiveError::NotEncrypted),
            (Some(_), None) => return Err(ArchiveError::KeyMissing),
            (Some(lock), Some(key)) => {
                let derived = key.derive(&lock.salt)?;
                if derived.check != lock.check {
                    return Err(ArchiveError::WrongKey);
                }
                Some(Opener::new(&derived, Digest::of(bytes), &mut input)?)
            }
        };
        let body = BodyReader::new(input, bytes, opener);
        let mut reader = Self { head, documents: Vec::new(), body, unpacker: Unpacker::new()? };
        reader.read_documents()?;
        Ok(reader)
    }

    fn read_documents(&mut self) -> Result<()> {
        for part in self.head.parts.iter().take_while(|part| part.kind == Kind::Json) {
            let mut blocks = BlockReader::new(&mut self.body, &mut self.unpacker, part);
            // The size is bounded by the format and by the caller. Memory is allocated as bytes arrive.
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < part.size {
                let now = (part.size - bytes.len() as u64).min(BLOCK as u64) as usize;
                let at = bytes.len();
                bytes.resize(at + now, 0);
                blocks.read_exact(&mut bytes[at..])?;
            }
            blocks.finish(Digest::of(&bytes))?;
            self.documents.push(Document { part: part.clone(), bytes });
        }
        Ok(())
    }

    /// Returns the declared parts, in order.
    pub fn parts(&self) -> &[Part] {
        &self.head.parts
    }

    /// Returns the documents, each compared with its own hash. Use them to refuse early, not to proceed without the
    /// rest.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// Returns a description of the archive from the data read so far.
    pub fn summary(&self) -> Summary {
        let (encrypted, parts) = (self.head.lock.is_some(), self.head.parts.clone());
        Summary { version: VERSION, encrypted, parts, documents: Some(self.documents.clone()) }
    }

    /// Reads everything and compares every hash, without writing anything. Needs no base.
    pub fn verify(self, watch: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Verified> {
        let restored = self.read(&[], None, watch)?;
        Ok(Verified { digest: restored.digest })
    }

    /// Restores every part except documents into the file that `targets` returns for it: an empty regular file, open for
    /// reading and writing. Returns the files once everything is verified. On any error, they are emptied and closed.
    /// Unnamed files are best, because they then disappear.
    ///
    /// `bases` are the files that disks are differences from. `watch` receives the progress and cancels with `Break`.
    pub fn restore(
        self,
        bases: &[Base],
        targets: &mut dyn FnMut(&Part) -> io::Result<File>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Restored> {
        for part in &self.head.parts {
            base_of(part, bases)?;
        }
        self.read(bases, Some(targets), watch)
    }

    fn read(
        mut self,
        bases: &[Base],
        mut targets: Option<Targets<'_>>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Restored> {
        let mut meter = Meter::new(watch, self.head.parts.iter().map(|part| part.size).sum());
        meter.advance(self.documents.iter().map(|document| document.part.size).sum(), self.body.read())?;
        let mut filled = Vec::new();
        for part in self.head.parts.iter().filter(|part| part.kind != Kind::Json) {
            let target = match &mut targets {
                Some(targets) => {
                    Some(Target::new(part, targets(part).map_err(io_error("create a file", &part.name))?)?)
                }
                None => None,
            };
            let file = target.as_ref().and_then(Target::file);
            let mut blocks = BlockReader::new(&mut self.body, &mut self.unpacker, part);
            let digest = if part.kind.is_paged() {
                let base = if file.is_some() { base_of(part, bases)? } else { None };
                pages::load(part, file, base, &mut blocks, &mut meter)?
            } else {
                load_file(part, file, &mut blocks, &mut meter)?
            };
            blocks.finish(digest)?;
            filled.extend(target);
        }
        let (_, digest) = self.body.finish()?;
        let files = filled.into_iter().filter_map(Target::keep).collect();
        Ok(Restored { documents: self.documents, files, digest })
    }
}

/// Returns the base that a part needs, if it needs one.
fn base_of<'b>(part: &Part, bases: &'b [Base]) -> Result<Option<&'b Base>> {
    let Some(wanted) = part.base else { return Ok(None) };
    let name = part.name.to_string();
    match (bases.iter().find(|base| base.id() == wanted), bases.first()) {
        (Some(base), _) => Ok(Some(base)),
        (None, None) => Err(ArchiveError::BaseMissing { part: name, base: wanted }),
        (None, Some(other)) => Err(ArchiveError::WrongBase { part: name, base: wanted, passed: other.id() }),
    }
}

/// Restores a file that is stored as a whole.
fn load_file<R: Read>(
    part: &Part,
    file: Option<&File>,
    blocks: &mut BlockReader<'_, R>,
    meter: &mut Meter<'_>,
) -> Result<Digest> {
    let (mut hasher, mut at, mut buffer) = (Sha256::new(), 0, vec![0; BLOCK]);
    while at < part.size {
        let now = (part.size - at).min(BLOCK as u64);
        let bytes = &mut buffer[..now as usize];
        blocks.read_exact(bytes)?;
        hasher.update(&*bytes);
        if let Some(file) = file {
            file.write_all_at(bytes, at).map_err(io_error("write", &part.name))?;
        }
        at += now;
        meter.advance(now, blocks.read())?;
    }
    Ok(Digest::finish(hasher))
}

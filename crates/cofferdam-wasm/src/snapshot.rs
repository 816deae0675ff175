//! A session at rest, and as a file.
//!
//! ```text
//! "COFFERDAM-WASM" NUL NUL | version u32 | length u64 | compressed (header, memory) | SHA-256 of all before it
//! ```
//!
//! Numbers are little-endian. The hash finds damage. It is no signature: whoever can write a file can write a hash. So
//! nothing in a file is believed: a restored guest stands behind the same wall as any other, and can do what its spec
//! allows, whatever the file says.

use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Access, ByteSize, Error, ErrorKind, Result};
use cofferdam_wasm_supply::Language;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::budget;
use crate::fs::{FrozenTree, FsError, FsResult, Ino, Renumbered, Tree};
use crate::guest::Guest;
use crate::languages::{Warm, names};
use crate::policy::Policy;
use crate::program::{Frozen, Value};
use crate::session::Beginnings;
use crate::state::{Files, Shared};
use crate::sys::Image;
use crate::time::Random;
use crate::wasi::{Descriptor, Descriptors};

const MAGIC: [u8; 16] = *b"COFFERDAM-WASM\0\0";
const VERSION: u32 = 2;
/// Magic, version and length.
const PREFIX: usize = 28;
const HASH: usize = 32;
/// Memory is kept in pieces of this size, without those that are zero.
const PIECE: usize = 4096;
/// More tables than any module here can have.
const MAX_TABLES: usize = 1000;
/// What a header may take in memory besides what a snapshot may take.
const ROOM: u64 = 4 << 20;

/// What a session's guest is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Language {
        #[serde(with = "language_name")]
        language: Language,
        /// What the interpreter was made from, compiled how.
        key: String,
    },
    Module(Bytes),
}

mod language_name {
    use cofferdam_wasm_supply::Language;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(language: &Language, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(crate::languages::names(*language).1)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Language, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = [Language::Python, Language::JavaScript];
        let found = known.into_iter().find(|language| crate::languages::names(*language).1 == name);
        found.ok_or_else(|| D::Error::custom("an unknown language"))
    }
}

impl Kind {
    pub(crate) fn of(language: Language, warm: &Warm) -> Self {
        Self::Language { language, key: warm.source.clone() }
    }

    /// Whether an interpreter is what this was made with.
    pub(crate) fn check(&self, warm: &Warm) -> Result<()> {
        match self {
            Self::Language { language, key } if *key != warm.source => {
                let name = names(*language).0;
                Err(Error::unsupported("restore", format!("the snapshot is of another version of {name}"))
                    .with_context("snapshot", key.escape_debug().to_string())
                    .with_context("here", warm.source.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// A session at rest. Cheap to clone, and to restore from any number of times.
#[derive(Debug, Clone)]
pub struct SessionSnapshot {
    pub(crate) kind: Kind,
    pub(crate) frozen: Frozen,
    tree: FrozenTree,
    pub(crate) descriptors: Vec<Option<Descriptor>>,
    pub(crate) workspace: Ino,
    pub(crate) temporary: Ino,
    passed: u64,
    /// The state of made-up randomness.
    seed: Option<u64>,
    metered: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    #[serde(deserialize_with = "budget::list")]
    pub(crate) globals: Vec<Value>,
    /// How long each table is, and what is in all of them.
    #[serde(deserialize_with = "budget::list")]
    pub(crate) tables: Vec<u32>,
    #[serde(deserialize_with = "budget::list")]
    pub(crate) entries: Vec<Option<u32>>,
    pub(crate) size: u64,
    /// Places in memory of the pieces that follow, by number.
    #[serde(deserialize_with = "budget::list")]
    pub(crate) pieces: Vec<u32>,
    pub(crate) tree: FrozenTree,
    #[serde(deserialize_with = "budget::list")]
    pub(crate) descriptors: Vec<Option<Descriptor>>,
    pub(crate) workspace: Ino,
    pub(crate) temporary: Ino,
    pub(crate) passed: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) metered: bool,
}

impl SessionSnapshot {
    pub(crate) fn of(kind: &Kind, shared: &Shared, beginning: &Frozen, guest: &mut Guest) -> Result<Self> {
        let frozen = match guest.freeze()? {
            Some(frozen) => frozen,
            None => beginning.clone(),
        };
        let host = guest.store.data();
        let seed = match host.random {
            Random::Real => None,
            Random::Seeded(state) => Some(state),
        };
        Ok(Self {
            kind: kind.clone(),
            frozen,
            tree: shared.tree("snapshot")?.freeze(),
            descriptors: host.descriptors.all().to_vec(),
            workspace: shared.workspace,
            temporary: shared.temporary,
            passed: host.clock.passed(),
            seed,
            metered: shared.policy.is_metered(),
        })
    }

    /// Whether the guest's steps were counted: it goes on only where they are counted again.
    pub(crate) fn check_metered(&self, metered: bool) -> Result<()> {
        if self.metered == metered {
            return Ok(());
        }
        let what =
            "a guest whose steps are counted goes on only where they are counted, and one whose are not where not";
        Err(Error::unsupported("restore", what)
            .with_remedy("give the spec wasm.deterministic or wasm.fuel as it was when the snapshot was made"))
    }

    /// The files for a sandbox of this spec, and what the guest begins with.
    pub(crate) fn thaw(
        &self,
        limit: Option<u64>,
        account: &Arc<crate::account::Account>,
        (policy, access): (Policy, Access),
    ) -> Result<(Files, Beginnings)> {
        let refused = |error: FsError| match error {
            FsError::Full | FsError::NoMemory | FsError::TooManyFiles => error.into_error("restore", "/workspace"),
            _ => damaged("its files make no tree"),
        };
        let (mut tree, renumbered) = self.tree.thaw(limit, Arc::clone(account)).map_err(refused)?;
        let descriptors = self.descriptors(&mut tree, &renumbered, access).map_err(refused)?;
        for ino in &renumbered.nameless {
            tree.let_go(*ino);
        }
        let workspace = renumbered.of(self.workspace.0).map_err(refused)?;
        let temporary = renumbered.of(self.temporary.0).map_err(refused)?;
        refuse_shared(&tree, workspace, temporary, access)?;
        let names = crate::fs::Base { ino: crate::fs::ROOT, name: None };
        for (name, ino) in [("workspace", workspace), ("tmp", temporary)] {
            if tree.lookup(names, name, crate::fs::LastLink::Keep) != Ok(ino) || !tree.is_directory(ino) {
                return Err(damaged("it has no workspace"));
            }
        }
        let files = Files { tree: Arc::new(std::sync::Mutex::new(tree)), workspace, temporary };
        // Whether randomness is made up is the spec's to say, and only how far it has come the snapshot's.
        let random = policy.seed.map_or(Random::Real, |seed| Random::Seeded(self.seed.unwrap_or(seed)));
        let beginnings =
            Beginnings { frozen: self.frozen.clone(), descriptors: Some(descriptors), passed: self.passed, random };
        Ok((files, beginnings))
    }

    /// The descriptors in a thawed tree, which holds a node for each. With a workspace that is read-only now, only the
    /// temporary directory itself stays writable.
    fn descriptors(&self, tree: &mut Tree, renumbered: &Renumbered, access: Access) -> FsResult<Descriptors> {
        let mut all = self.descriptors.clone();
        let temporary = renumbered.of(self.temporary.0)?;
        for descriptor in all.iter_mut().flatten() {
            match descriptor {
                Descriptor::Input | Descriptor::Output | Descriptor::Errors => {}
                Descriptor::File(file) => {
                    file.ino = renumbered.of(file.ino.0)?;
                    file.writes &= access == Access::ReadWrite;
                    if tree.is_directory(file.ino) {
                        return Err(FsError::Invalid);
                    }
                    tree.hold(file.ino)?;
                }
                Descriptor::Directory(directory) => {
                    directory.ino = renumbered.of(directory.ino.0)?;
                    directory.writable &= access == Access::ReadWrite || directory.ino == temporary;
                    // The top is nobody's to open.
                    if !tree.is_directory(directory.ino) || directory.ino == crate::fs::ROOT {
                        return Err(FsError::Invalid);
                    }
                    tree.hold(directory.ino)?;
                }
            }
        }
        Descriptors::of(all).ok_or(FsError::Invalid)
    }

    /// Writes it as a file.
    ///
    /// # Errors
    ///
    /// What the writer says.
    pub fn write(&self, mut writer: impl Write) -> Result<()> {
        let bytes = self.to_bytes()?;
        writer.write_all(&bytes).map_err(|error| {
            Error::new(ErrorKind::Io, "snapshot", "the snapshot could not be written").with_source(error)
        })
    }

    /// The file as bytes.
    ///
    /// # Errors
    ///
    /// If it would be longer than formats allow, 4 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut plain = postcard::to_stdvec(&self.header()).map_err(|error| {
            Error::new(ErrorKind::Internal, "snapshot", "the snapshot could not be written").with_source(error)
        })?;
        for (_, piece) in self.pieces() {
            plain.extend_from_slice(piece);
        }
        if u32::try_from(plain.len()).is_err() {
            let what = "the snapshot would be larger than 4 GiB";
            return Err(Error::new(ErrorKind::ResourceExhausted, "snapshot", what));
        }
        Ok(Self::packed(&plain))
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            kind: self.kind.clone(),
            globals: self.frozen.globals.to_vec(),
            tables: self.frozen.tables.iter().map(|table| table.len() as u32).collect(),
            entries: self.frozen.tables.concat(),
            size: self.frozen.image.size() as u64,
            pieces: self.pieces().map(|(number, _)| number).collect(),
            tree: self.tree.clone(),
            descriptors: self.descriptors.clone(),
            workspace: self.workspace,
            temporary: self.temporary,
            passed: self.passed,
            seed: self.seed,
            metered: self.metered,
        }
    }

    /// Pieces of memory that are not zero, by number.
    fn pieces(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let (start, contents) = self.frozen.image.contents();
        let numbered = (((start / PIECE) as u32)..).zip(contents.chunks(PIECE));
        numbered.filter(|(_, piece)| piece.iter().any(|byte| *byte != 0))
    }

    pub(crate) fn packed(plain: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((plain.len() as u64).to_le_bytes());
        bytes.extend(lz4_flex::block::compress(plain));
        let hash = Sha256::digest(&bytes);
        bytes.extend(hash);
        bytes
    }

    /// Reads a file. `most` bounds what it may unpack to.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is no snapshot, was changed or cut off, is of another version, or too large.
    pub fn read(reader: impl Read, most: ByteSize) -> Result<Self> {
        // What does not shrink takes a little more than it is.
        let longest = most.as_bytes().saturating_add(most.as_bytes() / 128 + 65_536);
        let mut bytes = Vec::new();
        let read = reader.take(longest.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| {
            Error::new(ErrorKind::Io, "restore", "the snapshot could not be read").with_source(error)
        })?;
        if bytes.len() as u64 > longest {
            return Err(too_large(most));
        }
        Self::from_bytes(&bytes, most)
    }

    /// The same from bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn from_bytes(bytes: &[u8], most: ByteSize) -> Result<Self> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::invalid("restore", "this is no snapshot of a WebAssembly session"));
        }
        let (signed, hash) = bytes.split_at_checked(bytes.len().saturating_sub(HASH)).unwrap_or_default();
        if signed.len() < PREFIX || Sha256::digest(signed)[..] != *hash {
            return Err(damaged("its hash is not that of its contents"));
        }
        let version = u32::from_le_bytes(signed[16..20].try_into().unwrap_or_default());
        if version != VERSION {
            return Err(Error::unsupported("restore", format!("the snapshot is of format {version}, not {VERSION}")));
        }
        let length = u64::from_le_bytes(signed[20..28].try_into().unwrap_or_default());
        if length > most.as_bytes() {
            return Err(too_large(most));
        }
        let length = usize::try_from(length).map_err(|_| too_large(most))?;
        let plain =
            lz4_flex::block::decompress(&signed[PREFIX..], length).map_err(|_| damaged("it does not unpack"))?;
        if plain.len() != length {
            return Err(damaged("it does not unpack"));
        }
        Self::unpack(&plain, most)
    }

    fn unpack(plain: &[u8], most: ByteSize) -> Result<Self> {
        let read = budget::within(most.as_bytes().saturating_add(ROOM), || postcard::take_from_bytes::<Header>(plain));
        let (header, memory) = read.map_err(|_| damaged("its header is none, or takes more memory than is allowed"))?;
        let size = usize::try_from(header.size).map_err(|_| too_large(most))?;
        if header.size > most.as_bytes() {
            return Err(too_large(most));
        }
        let whole = memory.len() == header.pieces.len() * PIECE;
        let rising = header.pieces.windows(2).all(|pair| pair[0] < pair[1]);
        if !whole || !rising {
            return Err(damaged("its memory is not as its header says"));
        }
        let pieces = header.pieces.iter().map(|number| *number as usize * PIECE).zip(memory.chunks(PIECE));
        let image = Image::new(size, pieces).map_err(|_| damaged("its memory is not as its header says"))?;
        let tables = tables(&header.tables, &header.entries).ok_or_else(|| damaged("its tables are not as it says"))?;
        let frozen = Frozen { image, globals: header.globals.into(), tables: tables.into() };
        let Header { kind, tree, descriptors, workspace, temporary, passed, seed, metered, .. } = header;
        Ok(Self { kind, frozen, tree, descriptors, workspace, temporary, passed, seed, metered })
    }
}

/// The entries, table by table.
fn tables(lengths: &[u32], mut entries: &[Option<u32>]) -> Option<Vec<Vec<Option<u32>>>> {
    let mut tables = Vec::new();
    if lengths.len() > MAX_TABLES {
        return None;
    }
    for length in lengths {
        let (table, rest) = entries.split_at_checked(*length as usize)?;
        entries = rest;
        tables.push(table.to_vec());
    }
    entries.is_empty().then_some(tables)
}

/// What has a name in a read-only workspace must have none where it can be written to.
pub(crate) fn refuse_shared(tree: &Tree, workspace: Ino, temporary: Ino, access: Access) -> Result<()> {
    if access == Access::ReadWrite || !tree.share_a_node(workspace, temporary) {
        return Ok(());
    }
    Err(Error::unsupported("restore", "a file has names in the workspace, which is read-only now, and outside of it")
        .with_remedy("take one of its names away before the snapshot, or let the workspace be written to"))
}

fn damaged(why: &str) -> Error {
    Error::invalid("restore", format!("the snapshot was damaged or changed: {why}"))
}

fn too_large(most: ByteSize) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "restore", format!("the snapshot takes more than {most}"))
        .with_remedy("allow more memory, if you trust where it comes from")
}

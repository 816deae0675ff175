//! Session snapshots, in memory and as files.
//!
//! ```text
//! "COFFERDAM-WASM" NUL NUL | version u32 | length u64 | compressed (header, memory) | SHA-256 of all before it
//! ```
//!
//! Numbers are little-endian. The hash detects damage. It is not a signature: a process that can write a file can also
//! write a hash. So the content of a file is untrusted: a restored guest has the same isolation boundary as any other,
//! and can do what its spec allows, whatever the file contains.

use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Access, ByteSize, Error, ErrorKind, Result, Spec, TenantId};
use cofferdam_wasm_runtimes::Language;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::account::Account;
use crate::budget;
use crate::files::{Files, files_account, refuse_shared};
use crate::fs::{FrozenTree, FsError, FsResult, Ino, Renumbered, Tree};
use crate::guest::Guest;
use crate::languages::{PreparedInterpreter, names};
use crate::policy::Policy;
use crate::program::{Frozen, Value};
use crate::state::Shared;
use crate::sys::Image;
use crate::time::Random;
use crate::wasi::{Descriptor, Descriptors};

const MAGIC: [u8; 16] = *b"COFFERDAM-WASM\0\0";
const VERSION: u32 = 3;
/// The length of magic, version and length.
const PREFIX: usize = 28;
const HASH: usize = 32;
/// The size of a memory piece. Pieces of zeros are omitted.
const PIECE: usize = 4096;
/// More tables than any module here can have.
const MAX_TABLES: usize = 1000;
/// The memory that a header may take in addition to the snapshot's limit.
const HEADER_ALLOWANCE: u64 = 4 << 20;

/// The kind of a session's guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Language {
        #[serde(with = "language_name")]
        language: Language,
        /// The recipe of the interpreter.
        key: String,
    },
    Module(Bytes),
}

mod language_name {
    use cofferdam_wasm_runtimes::Language;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(language: &Language, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(crate::languages::names(*language).1)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Language, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = [Language::Python, Language::JavaScript];
        let found = known.into_iter().find(|language| crate::languages::names(*language).1 == name);
        found.ok_or_else(|| D::Error::custom("unknown language"))
    }
}

impl Kind {
    pub(crate) fn of(language: Language, prepared: &PreparedInterpreter) -> Self {
        Self::Language { language, key: prepared.source.clone() }
    }

    /// Checks that an interpreter has the recipe of the snapshot.
    pub(crate) fn check(&self, prepared: &PreparedInterpreter) -> Result<()> {
        match self {
            Self::Language { language, key } if *key != prepared.source => {
                let name = names(*language).0;
                Err(Error::unsupported("restore", format!("the snapshot was taken by another version of {name}"))
                    .with_context("snapshot", key.escape_debug().to_string())
                    .with_context("here", prepared.source.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// The initial state of a session, besides its program.
pub(crate) struct InitialState {
    pub(crate) frozen: Frozen,
    pub(crate) descriptors: Option<Descriptors>,
    pub(crate) passed: u64,
    pub(crate) random: Random,
}

/// A snapshot of a session. Cheap to clone. It can be restored any number of times.
#[derive(Debug, Clone)]
pub struct SessionSnapshot {
    pub(crate) kind: Kind,
    pub(crate) frozen: Frozen,
    tree: FrozenTree,
    pub(crate) descriptors: Vec<Option<Descriptor>>,
    pub(crate) workspace: Ino,
    pub(crate) temporary: Ino,
    passed: u64,
    /// The state of deterministic random numbers.
    seed: Option<u64>,
    metered: bool,
    /// The tenant whose work it contains. A file has none.
    tenant: Option<TenantId>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    #[serde(deserialize_with = "budget::list")]
    pub(crate) globals: Vec<Value>,
    /// The lengths of the tables. `entries` has the entries of all tables.
    #[serde(deserialize_with = "budget::list")]
    pub(crate) tables: Vec<u32>,
    #[serde(deserialize_with = "budget::list")]
    pub(crate) entries: Vec<Option<u32>>,
    pub(crate) size: u64,
    /// The numbers of the memory pieces that follow the header.
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
    pub(crate) fn of(kind: &Kind, shared: &Shared, initial: &Frozen, guest: &mut Guest) -> Result<Self> {
        let frozen = match guest.freeze()? {
            Some(frozen) => frozen,
            None => initial.clone(),
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
            tenant: Some(shared.spec.tenant().clone()),
        })
    }

    /// Sets the tenant whose work it contains, which is the only one that can restore it. A snapshot from a file has
    /// none, and every tenant can restore it.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = Some(tenant);
        self
    }

    /// Returns the tenant whose work it contains, if it is known.
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// Checks that the spec's metering equals that of the snapshot.
    pub(crate) fn check_metered(&self, metered: bool) -> Result<()> {
        if self.metered == metered {
            return Ok(());
        }
        let what = "a guest with metered execution can be restored only with metering, and one without only without";
        Err(Error::unsupported("restore", what)
            .with_remedy("set wasm.deterministic and wasm.fuel as in the spec of the snapshot"))
    }

    /// Creates the files of a sandbox of this spec, and the initial state of its guest. `memory` is the account of the
    /// sandbox's memory limit.
    pub(crate) fn thaw(&self, spec: &Spec, policy: Policy, memory: &Arc<Account>) -> Result<(Files, InitialState)> {
        let disk = spec.limits().disk.map(|limit| limit.as_bytes());
        let access = spec.workspace().access();
        let refused = |error: FsError| match error {
            FsError::Full | FsError::NoMemory | FsError::TooManyFiles => error.into_error("restore", "/workspace"),
            _ => damaged("its files are not a valid tree"),
        };
        let (mut tree, renumbered) = self.tree.thaw(disk, files_account(spec, memory)).map_err(refused)?;
        let descriptors = self.descriptors(&mut tree, &renumbered, access).map_err(refused)?;
        for ino in &renumbered.nameless {
            tree.release(*ino);
        }
        let workspace = renumbered.of(self.workspace.0).map_err(refused)?;
        let temporary = renumbered.of(self.temporary.0).map_err(refused)?;
        refuse_shared(&tree, workspace, temporary, access)?;
        let names = crate::fs::Base { ino: crate::fs::ROOT, name: None };
        for (name, ino) in [("workspace", workspace), ("tmp", temporary)] {
            if tree.lookup(names, name, crate::fs::LastLink::Keep) != Ok(ino) || !tree.is_directory(ino) {
                return Err(damaged("its workspace is missing"));
            }
        }
        let files = Files { tree: Arc::new(parking_lot::Mutex::new(tree)), workspace, temporary };
        // The spec decides whether random numbers are deterministic. The snapshot has only their state.
        let random = policy.seed.map_or(Random::Real, |seed| Random::Seeded(self.seed.unwrap_or(seed)));
        let initial =
            InitialState { frozen: self.frozen.clone(), descriptors: Some(descriptors), passed: self.passed, random };
        Ok((files, initial))
    }

    /// Returns the descriptors for a thawed tree, and acquires each one's node. If the workspace is read-only now, only
    /// the temporary directory itself stays writable.
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
                    tree.acquire(file.ino)?;
                }
                Descriptor::Directory(directory) => {
                    directory.ino = renumbered.of(directory.ino.0)?;
                    directory.writable &= access == Access::ReadWrite || directory.ino == temporary;
                    // Guests cannot open the root directory.
                    if !tree.is_directory(directory.ino) || directory.ino == crate::fs::ROOT {
                        return Err(FsError::Invalid);
                    }
                    tree.acquire(directory.ino)?;
                }
            }
        }
        Descriptors::of(all).ok_or(FsError::Invalid)
    }

    /// Writes the snapshot as a file.
    ///
    /// # Errors
    ///
    /// `Io` if the writer fails, and the errors of [`Self::to_bytes`].
    pub fn write(&self, mut writer: impl Write) -> Result<()> {
        let bytes = self.to_bytes()?;
        writer
            .write_all(&bytes)
            .map_err(|error| Error::new(ErrorKind::Io, "snapshot", "cannot write the snapshot").with_source(error))
    }

    /// Returns the content of the file.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if the snapshot is larger than the format's limit of 4 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut plain = postcard::to_stdvec(&self.header()).map_err(|error| {
            Error::new(ErrorKind::Internal, "snapshot", "cannot serialize the snapshot").with_source(error)
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

    /// Returns the memory pieces that are not zero, with their numbers.
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

    /// Reads a snapshot from a file. `max` limits its unpacked size.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is not a snapshot, or is damaged or truncated; `Unsupported` if it has another format
    /// version; `ResourceExhausted` if it is too large.
    pub fn read(reader: impl Read, max: ByteSize) -> Result<Self> {
        // Incompressible data takes a little more than its size.
        let max_length = max.as_bytes().saturating_add(max.as_bytes() / 128 + 65_536);
        let mut bytes = Vec::new();
        let read = reader.take(max_length.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| Error::new(ErrorKind::Io, "restore", "cannot read the snapshot").with_source(error))?;
        if bytes.len() as u64 > max_length {
            return Err(too_large(max));
        }
        Self::from_bytes(&bytes, max)
    }

    /// Reads a snapshot from bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn from_bytes(bytes: &[u8], max: ByteSize) -> Result<Self> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::invalid("restore", "not a snapshot of a WebAssembly session"));
        }
        let (signed, hash) = bytes.split_at_checked(bytes.len().saturating_sub(HASH)).unwrap_or_default();
        if signed.len() < PREFIX || Sha256::digest(signed)[..] != *hash {
            return Err(damaged("its hash does not match its content"));
        }
        let version = u32::from_le_bytes(signed[16..20].try_into().unwrap_or_default());
        if version != VERSION {
            return Err(Error::unsupported("restore", format!("the snapshot has format {version}, not {VERSION}")));
        }
        let length = u64::from_le_bytes(signed[20..28].try_into().unwrap_or_default());
        if length > max.as_bytes() {
            return Err(too_large(max));
        }
        let length = usize::try_from(length).map_err(|_| too_large(max))?;
        let plain =
            lz4_flex::block::decompress(&signed[PREFIX..], length).map_err(|_| damaged("it cannot be decompressed"))?;
        if plain.len() != length {
            return Err(damaged("it cannot be decompressed"));
        }
        Self::unpack(&plain, max)
    }

    fn unpack(plain: &[u8], max: ByteSize) -> Result<Self> {
        let bytes = max.as_bytes().saturating_add(HEADER_ALLOWANCE);
        let read = budget::within(bytes, || postcard::take_from_bytes::<Header>(plain));
        let (header, memory) = read.map_err(|_| damaged("its header is invalid, or exceeds the memory limit"))?;
        let size = usize::try_from(header.size).map_err(|_| too_large(max))?;
        if header.size > max.as_bytes() {
            return Err(too_large(max));
        }
        let whole = memory.len() == header.pieces.len() * PIECE;
        let ascending = header.pieces.windows(2).all(|pair| pair[0] < pair[1]);
        if !whole || !ascending {
            return Err(damaged("its memory does not match its header"));
        }
        let pieces = header.pieces.iter().map(|number| *number as usize * PIECE).zip(memory.chunks(PIECE));
        let image = Image::new(size, pieces).map_err(|_| damaged("its memory does not match its header"))?;
        let tables =
            tables(&header.tables, &header.entries).ok_or_else(|| damaged("its tables do not match its header"))?;
        let frozen = Frozen { image, globals: header.globals.into(), tables: tables.into() };
        let Header { kind, tree, descriptors, workspace, temporary, passed, seed, metered, .. } = header;
        Ok(Self { kind, frozen, tree, descriptors, workspace, temporary, passed, seed, metered, tenant: None })
    }
}

/// Splits the entries by table.
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

fn damaged(reason: &str) -> Error {
    Error::invalid("restore", format!("the snapshot is damaged or was changed: {reason}"))
}

fn too_large(max: ByteSize) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "restore", format!("the snapshot takes more than {max}"))
        .with_remedy("allow more memory, if you trust its source")
}

//! Archives: the headers of their members, and the reader of a package.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use cofferdam_linux::named;
use cofferdam_util::{hex, sha256};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use tar::{EntryType, Header};
use zstd::Decoder;

use super::error::{Result, Verdict, io as io_error, refused};
use super::index::{Contents, Entry, Index, MAX_INDEX};
use super::{MAX_SIZE, PublicKey};
use crate::Manifest;

/// The members before the files.
pub(crate) const INDEX: &str = "index.json";
pub(crate) const SIGNATURE: &str = "signature.json";
/// The directory of the files.
pub(crate) const FILES: &str = "files";
/// The size of a header, and of the blocks of contents.
pub(crate) const BLOCK: usize = 512;
/// The binary logarithm of the window of the compression, which is the memory of a reader: 8 MiB.
pub(crate) const WINDOW_LOG: u32 = 23;
/// The maximum size of a package: incompressible files, the index and the headers.
const MAX_PACKAGE: u64 = MAX_SIZE + (64 << 20);
const MAX_SIGNATURE: usize = 1024;
const PIECE: usize = 64 << 10;

/// The signature of a package.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Signature {
    /// The public key in hexadecimal digits.
    pub key: String,
    /// The signature of the digest in hexadecimal digits.
    pub signature: String,
}

/// A package whose signature and contents are verified.
#[derive(Debug)]
pub struct Package {
    file: File,
    index: Index,
    manifest: Manifest,
    signer: PublicKey,
    digest: String,
    /// The bytes of the index and of the signature.
    pub(crate) head: [Vec<u8>; 2],
}

impl Package {
    /// Opens a package and verifies all of it: the signature, and the digest and size of each file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of_file(named::read(path).map_err(io_error("open", path))?)
    }

    pub(crate) fn of_file(file: File) -> Result<Self> {
        let found = file.metadata().map_err(io_error("inspect", "package"))?;
        if !found.is_file() {
            return Err(refused(Verdict::NotAPackage, "it is a directory"));
        }
        if found.len() > MAX_PACKAGE {
            return Err(refused(Verdict::TooLarge, format!("it has more than {MAX_PACKAGE} bytes")));
        }
        let mut members = Members::new(&file)?;
        let head = members.head()?;
        let (signer, digest) = verify(&head)?;
        let (index, manifest) = Index::read(&head[0])?;
        let package = Self { file, index, manifest, signer, digest, head };
        package.read(&mut Discard)?;
        Ok(package)
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the digest of the package.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the key that signed the package.
    pub fn signer(&self) -> PublicKey {
        self.signer
    }

    /// Reads all files again, and passes them on. The digest of a file is verified after its last piece.
    pub(crate) fn read(&self, to: &mut dyn Receiver) -> Result<()> {
        (&self.file).seek(SeekFrom::Start(0)).map_err(io_error("read", "package"))?;
        let mut members = Members::new(&self.file)?;
        if members.head()? != self.head {
            return Err(refused(Verdict::BadDigest, "the package changed while it was read"));
        }
        for entry in &self.index.entries {
            let wanted = header(entry).map_err(|_| refused(Verdict::UnsafePath, &entry.path))?;
            members.demand(&wanted, &entry.path)?;
            to.begin(entry)?;
            members.contents(entry, to)?;
        }
        members.end()
    }
}

/// The receiver of the files of a package.
pub(crate) trait Receiver {
    /// Receives an entry. The pieces of its contents follow.
    fn begin(&mut self, entry: &Entry) -> Result<()>;

    /// Receives the next piece of the contents.
    fn piece(&mut self, piece: &[u8]) -> Result<()>;
}

/// A receiver that discards everything.
struct Discard;

impl Receiver for Discard {
    fn begin(&mut self, _: &Entry) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Verifies the signature. Returns its key, and the digest of the package.
fn verify([index, signature]: &[Vec<u8>; 2]) -> Result<(PublicKey, String)> {
    let bad = || refused(Verdict::BadSignature, "the signature has another form");
    let Signature { key, signature } = serde_json::from_slice(signature).map_err(|_| bad())?;
    let mut bytes = [0; 64];
    hex::decode(signature.as_bytes(), &mut bytes).ok_or_else(bad)?;
    let (key, digest) = (PublicKey::from_hex(&key).ok_or_else(bad)?, sha256::of(index));
    match key.verifies(&digest, &bytes) {
        true => Ok((key, digest)),
        false => Err(refused(Verdict::BadSignature, "the index was changed after it was signed")),
    }
}

/// Returns the header of an entry. It is the only one that a reader accepts.
pub(crate) fn header(entry: &Entry) -> io::Result<Header> {
    let path = format!("{FILES}/{}", entry.path);
    match &entry.contents {
        Contents::Directory => plain_header(&path, EntryType::Directory, 0, 0o755),
        Contents::File { size, executable, .. } => {
            plain_header(&path, EntryType::Regular, *size, if *executable { 0o755 } else { 0o644 })
        }
        Contents::Link { target } => {
            let mut header = plain_header(&path, EntryType::Symlink, 0, 0o777)?;
            header.set_link_name_literal(target)?;
            header.set_cksum();
            Ok(header)
        }
    }
}

/// Returns a header without times and owners.
pub(crate) fn plain_header(path: &str, kind: EntryType, size: u64, mode: u32) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(path)?;
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    Ok(header)
}

/// Returns true if a header has room for the path of an entry.
pub(crate) fn is_valid_path(path: &str) -> bool {
    Header::new_ustar().set_path(format!("{FILES}/{path}")).is_ok()
}

/// The members of an archive that are still to be read.
struct Members<'a> {
    from: Decoder<'static, BufReader<&'a File>>,
}

impl<'a> Members<'a> {
    fn new(file: &'a File) -> Result<Self> {
        let mut from = Decoder::new(file).map_err(io_error("read", "package"))?;
        from.window_log_max(WINDOW_LOG).map_err(io_error("read", "package"))?;
        Ok(Self { from })
    }

    /// Reads the index and the signature.
    fn head(&mut self) -> Result<[Vec<u8>; 2]> {
        Ok([self.small(INDEX, MAX_INDEX)?, self.small(SIGNATURE, MAX_SIGNATURE)?])
    }

    /// Reads a member whose size the archive states.
    fn small(&mut self, name: &str, max: usize) -> Result<Vec<u8>> {
        let block = self.block()?;
        let other = || refused(Verdict::NotAPackage, format!("its next member is not {name}"));
        let size = Header::from_byte_slice(&block).entry_size().map_err(|_| other())?;
        let wanted = plain_header(name, EntryType::Regular, size, 0o644).map_err(|_| other())?;
        if *wanted.as_bytes() != block {
            return Err(other());
        }
        if size > max as u64 {
            return Err(refused(Verdict::TooLarge, format!("{name} has more than {max} bytes")));
        }
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        self.padding(size)?;
        Ok(bytes)
    }

    /// Reads a header, which must be the wanted one.
    fn demand(&mut self, wanted: &Header, path: &str) -> Result<()> {
        let block = self.block()?;
        match block == *wanted.as_bytes() {
            true => Ok(()),
            false => Err(refused(Verdict::BadMember, difference(Header::from_byte_slice(&block), wanted, path))),
        }
    }

    /// Reads the contents of an entry, and verifies their digest.
    fn contents(&mut self, entry: &Entry, to: &mut dyn Receiver) -> Result<()> {
        let Contents::File { size, sha256, .. } = &entry.contents else { return Ok(()) };
        let (mut hash, mut piece, mut left) = (Context::new(&SHA256), vec![0; PIECE], *size);
        while left > 0 {
            let length = left.min(PIECE as u64) as usize;
            self.fill(&mut piece[..length])?;
            hash.update(&piece[..length]);
            to.piece(&piece[..length])?;
            left -= length as u64;
        }
        if hex::encode(hash.finish()) != *sha256 {
            let reason = format!("the contents of '{}' are not those of the index", entry.path);
            return Err(refused(Verdict::BadDigest, reason));
        }
        self.padding(*size)
    }

    /// Reads the end of the archive. Nothing may follow.
    fn end(&mut self) -> Result<()> {
        if [self.block()?, self.block()?].iter().flatten().any(|byte| *byte != 0) {
            return Err(refused(Verdict::BadMember, "it has a member that is not in the index"));
        }
        match self.from.read(&mut [0]).map_err(unreadable)? {
            0 => Ok(()),
            _ => Err(refused(Verdict::BadLength, "data follows its end")),
        }
    }

    fn block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        self.fill(&mut block)?;
        Ok(block)
    }

    fn padding(&mut self, size: u64) -> Result<()> {
        let length = (BLOCK - size as usize % BLOCK) % BLOCK;
        let mut padding = vec![0; length];
        self.fill(&mut padding)?;
        match padding.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(refused(Verdict::BadMember, "it has data between its members")),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.from.read_exact(bytes).map_err(unreadable)
    }
}

/// Converts an error of the decoder. Errors of the operating system have a number.
fn unreadable(error: io::Error) -> super::PackageError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => refused(Verdict::BadLength, "it ends too early"),
        _ if error.raw_os_error().is_some() => io_error("read", "package")(error),
        _ => refused(Verdict::NotAPackage, format!("it cannot be decompressed: {error}")),
    }
}

/// Describes why a header is not the wanted one.
fn difference(found: &Header, wanted: &Header, path: &str) -> String {
    if found.as_bytes().iter().all(|byte| *byte == 0) {
        return format!("it ends before '{path}'");
    }
    let kind = found.entry_type();
    if kind != wanted.entry_type() {
        return format!("'{path}' is {}", name_of(kind));
    }
    if found.path_bytes() != wanted.path_bytes() {
        let other = String::from_utf8_lossy(&found.path_bytes()).into_owned();
        return format!("'{other}' is in the place of '{path}'");
    }
    let special = found.mode().unwrap_or(0) & 0o7000;
    if special != 0 {
        return format!("'{path}' has the mode bits {special:o}");
    }
    let has_size = found.entry_size().ok() == wanted.entry_size().ok();
    match has_size {
        false => format!("'{path}' has another size than in the index"),
        true => format!("'{path}' has another mode, owner, time or target than in the index"),
    }
}

fn name_of(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Regular | EntryType::Continuous => "a file",
        EntryType::Directory => "a directory",
        EntryType::Symlink => "a symbolic link",
        EntryType::Link => "a hard link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a fifo",
        _ => "of an unknown type",
    }
}

//! Members of a tar with all their extensions, read at their positions.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tar::EntryType;

use crate::bounds::MAX_PATH;
use crate::error::{ChangesError, Result, io, malformed};
use crate::fingerprint::{Fingerprint, TreeDigest};
use crate::header::Header;
use crate::layer::{KEY_BASE, KEY_TREE};
use crate::pax;

const BLOCK: u64 = 512;
/// Maximum padding after the end of the archive. Other programs fill up records of 10 KiB and more.
const MAX_PADDING: u64 = 1 << 20;

/// Maximum length of a path with the prefix of a whiteout, a slash and a NUL.
const MAX_LONG_NAME: u64 = MAX_PATH as u64 + 8;

/// A member of the archive.
#[derive(Debug)]
pub(crate) struct Member {
    pub path: Vec<u8>,
    pub target: Vec<u8>,
    pub kind: EntryType,
    pub size: u64,
    pub mode: u32,
    pub offset: u64,
    pub base: Option<Fingerprint>,
    pub tree: Option<TreeDigest>,
}

/// Extensions that precede a member.
#[derive(Debug, Default)]
struct Extensions {
    records: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

/// The members of an archive.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    file: &'a File,
    at: u64,
    length: u64,
}

impl<'a> Blocks<'a> {
    pub fn new(file: &'a File) -> Result<Self> {
        let length = file.metadata().map_err(io("inspect", Path::new("the change set")))?.len();
        Ok(Self { file, at: 0, length })
    }

    /// Returns the global header, which is the first member.
    pub fn global(&mut self) -> Result<Header> {
        let missing = || malformed(b"global header", "it is missing; the file is not a change set");
        let header = self.header()?.ok_or_else(missing)?;
        if header.entry_type() != EntryType::XGlobalHeader {
            return Err(missing());
        }
        Header::parse(&self.extension(&header, pax::MAX_HEADER)?)
    }

    /// Returns the next member and skips its contents.
    pub fn next(&mut self) -> Result<Option<Member>> {
        let mut extensions = Extensions::default();
        loop {
            let Some(header) = self.header()? else {
                let Extensions { records: None, name: None, target: None } = extensions else {
                    return Err(self.wrong("extended headers precede no entry"));
                };
                return Ok(None);
            };
            let (slot, max) = match header.entry_type() {
                EntryType::XHeader => (&mut extensions.records, pax::MAX_HEADER),
                EntryType::GNULongName => (&mut extensions.name, MAX_LONG_NAME),
                EntryType::GNULongLink => (&mut extensions.target, MAX_LONG_NAME),
                EntryType::XGlobalHeader => return Err(self.wrong("there is a second global header")),
                _ => return self.member(&header, extensions).map(Some),
            };
            if slot.is_some() {
                return Err(self.wrong("an entry has two extended headers of one type"));
            }
            *slot = Some(self.extension(&header, max)?);
        }
    }

    fn member(&mut self, header: &tar::Header, extensions: Extensions) -> Result<Member> {
        let Extensions { records, name, target } = extensions;
        let records = records.unwrap_or_default();
        let records = pax::parse(&records).map_err(|reason| self.wrong(reason))?;
        let record = |key: &str| records.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
        let from_record = |key| record(key).map(<[u8]>::to_vec);
        let path = name.map(unterminated).or_else(|| from_record("path")).unwrap_or_else(|| name_field(header));
        let target = target.map(unterminated).or_else(|| from_record("linkpath"));
        let target = target.unwrap_or_else(|| field(&header.as_old().linkname));
        let wrong = |reason: &str| malformed(&path, reason);
        if records.iter().any(|(key, _)| key.starts_with("GNU.sparse.")) {
            return Err(wrong("sparse files are not allowed"));
        }
        let size = header.entry_size().map_err(|_| wrong("the size is invalid"))?;
        // A second size would let two readers find different entries.
        if record("size").is_some_and(|text| text != size.to_string().as_bytes()) {
            return Err(wrong("the entry has two sizes"));
        }
        let base = record(KEY_BASE)
            .map(|value| text(value).and_then(Fingerprint::parse).ok_or_else(|| wrong("the fingerprint is invalid")));
        let tree = record(KEY_TREE).map(|value| {
            text(value).and_then(TreeDigest::parse).ok_or_else(|| wrong("the digest of the tree is invalid"))
        });
        let mode = header.mode().map_err(|_| wrong("the permissions are invalid"))?;
        let kind = match header.entry_type() {
            EntryType::GNUSparse => return Err(wrong("sparse files are not allowed")),
            kind => kind,
        };
        let (base, tree) = (base.transpose()?, tree.transpose()?);
        let offset = self.at;
        self.skip(size).ok_or_else(|| wrong("the file ends within the entry"))?;
        Ok(Member { path, target, kind, size, mode: mode & 0o7777, offset, base, tree })
    }

    /// Reads the next header. Returns `None` at the end of the archive, after which there may be zeros.
    fn header(&mut self) -> Result<Option<tar::Header>> {
        let mut header = tar::Header::new_old();
        self.read(header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return self.end().map(|()| None);
        }
        let bytes = header.as_bytes();
        let sum = bytes[..148].iter().chain(&bytes[156..]).fold(8 * 32, |sum, byte| sum + u32::from(*byte));
        if header.cksum().ok() != Some(sum) {
            return Err(self.wrong("the checksum of a header is wrong"));
        }
        Ok(Some(header))
    }

    fn end(&mut self) -> Result<()> {
        let left = self.length.saturating_sub(self.at);
        if !(BLOCK..=MAX_PADDING).contains(&left) {
            return Err(self.wrong("the end of the archive is invalid"));
        }
        let mut rest = vec![0; usize::try_from(left).unwrap_or(0)];
        self.read(&mut rest)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(self.wrong("there is data after the end of the archive"));
        }
        Ok(())
    }

    fn extension(&mut self, header: &tar::Header, max: u64) -> Result<Vec<u8>> {
        let size = header.entry_size().map_err(|_| self.wrong("the size is invalid"))?;
        if size > max {
            return Err(self.wrong("an extended header is too large"));
        }
        let begin = self.at;
        self.skip(size).ok_or_else(|| self.wrong("the file ends within a header"))?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, begin).map_err(io("read", Path::new("the change set")))?;
        Ok(bytes)
    }

    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        let begin = self.at;
        let end = begin.checked_add(into.len() as u64).filter(|end| *end <= self.length);
        self.at = end.ok_or_else(|| self.wrong("the file ends before the end of the archive"))?;
        self.file.read_exact_at(into, begin).map_err(io("read", Path::new("the change set")))
    }

    fn skip(&mut self, size: u64) -> Option<()> {
        let end = size.checked_next_multiple_of(BLOCK)?.checked_add(self.at).filter(|end| *end <= self.length)?;
        self.at = end;
        Some(())
    }

    fn wrong(&self, reason: &str) -> ChangesError {
        malformed(format!("byte {}", self.at).as_bytes(), reason)
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Returns a field up to its first NUL.
fn field(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take_while(|byte| *byte != 0).collect()
}

fn name_field(header: &tar::Header) -> Vec<u8> {
    let name = field(&header.as_old().name);
    match header.as_ustar().map(|ustar| field(&ustar.prefix)) {
        Some(mut prefix) if !prefix.is_empty() => {
            prefix.push(b'/');
            prefix.extend(name);
            prefix
        }
        _ => name,
    }
}

/// Removes the NUL that ends a long name.
fn unterminated(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}

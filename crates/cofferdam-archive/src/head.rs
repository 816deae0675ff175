//! The head of an archive: a table of contents in clear, with a hash of its own.
//!
//! ```text
//! magic 16 | version u32 | flags u32 | parts u32 | 0 u32 | salt 32 | check 32 | parts × 80 | SHA-256 of all before
//! part: kind u8 | based u8 | 0 6 | size u64 | base 32 | name 32
//! ```

use std::io::Read;

use crate::digest::Digest;
use crate::error::{ArchiveError, Result, damaged};
use crate::key::{CHECK, SALT};
use crate::part::{Kind, Name, Part};
use crate::seal::fill;

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 1;
/// The maximum number of parts of an archive.
pub const MAX_PARTS: u32 = 64;

pub(crate) const MAGIC: [u8; 16] = *b"COFFERDAM-VMSNAP";
const ENCRYPTED: u32 = 1;
const FIXED: usize = 96;
const ENTRY: usize = 80;

/// The encryption parameters of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) salt: [u8; SALT],
    pub(crate) check: [u8; CHECK],
}

/// A head. Its parts are as declared, within the bounds of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) lock: Option<Lock>,
    pub(crate) parts: Vec<Part>,
}

impl Head {
    /// Encodes the head with its hash.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let flags = if self.lock.is_some() { ENCRYPTED } else { 0 };
        let count = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        for number in [VERSION, flags, count, 0] {
            bytes.extend(number.to_le_bytes());
        }
        let lock = self.lock.unwrap_or(Lock { salt: [0; SALT], check: [0; CHECK] });
        bytes.extend(lock.salt);
        bytes.extend(lock.check);
        self.parts.iter().for_each(|part| encode_part(part, &mut bytes));
        let digest = Digest::of(&bytes);
        bytes.extend(digest.as_bytes());
        bytes
    }

    /// Reads a head and no byte more. Also returns its bytes, the first input of the whole archive's hash.
    pub(crate) fn read(input: &mut impl Read) -> Result<(Self, Vec<u8>)> {
        let mut bytes = vec![0; FIXED];
        let got = fill(input, &mut bytes)?;
        let beginning = got.min(MAGIC.len());
        if got == 0 || bytes[..beginning] != MAGIC[..beginning] {
            return Err(ArchiveError::NotAnArchive);
        }
        if got < 20 {
            return Err(ArchiveError::Truncated);
        }
        let version = u32_at(&bytes, 16);
        if version > VERSION {
            return Err(ArchiveError::NewerVersion { found: version, known: VERSION });
        }
        if got < FIXED {
            return Err(ArchiveError::Truncated);
        }
        let count = u32_at(&bytes, 24);
        if count > MAX_PARTS {
            return Err(ArchiveError::TooManyParts { found: count.into(), max: MAX_PARTS.into() });
        }
        let end = FIXED + count as usize * ENTRY;
        bytes.resize(end + Digest::LENGTH, 0);
        if fill(input, &mut bytes[FIXED..])? < end - FIXED + Digest::LENGTH {
            return Err(ArchiveError::Truncated);
        }
        if Digest::of(&bytes[..end]).as_bytes() != &bytes[end..] {
            return Err(damaged("the hash of the head"));
        }
        Ok((Self::decode(&bytes[..end], version)?, bytes))
    }

    fn decode(bytes: &[u8], version: u32) -> Result<Self> {
        let (flags, zero) = (u32_at(bytes, 20), u32_at(bytes, 28));
        if version != VERSION || zero != 0 || flags & !ENCRYPTED != 0 {
            return Err(damaged("unknown flags in the head"));
        }
        let lock = Lock { salt: array_at(bytes, 32), check: array_at(bytes, 64) };
        let encrypted = flags & ENCRYPTED != 0;
        if !encrypted && bytes[32..FIXED].iter().any(|byte| *byte != 0) {
            return Err(damaged("a salt without encryption"));
        }
        let parts = bytes[FIXED..].chunks_exact(ENTRY).map(decode_part).collect::<Result<Vec<_>>>()?;
        check_parts(&parts)?;
        Ok(Self { lock: encrypted.then_some(lock), parts })
    }
}

/// Checks the parts as a set: unique names, documents first, sizes within the format.
pub(crate) fn check_parts(parts: &[Part]) -> Result<()> {
    if parts.len() > MAX_PARTS as usize {
        return Err(ArchiveError::TooManyParts { found: parts.len() as u64, max: MAX_PARTS.into() });
    }
    for (at, part) in parts.iter().enumerate() {
        if parts[..at].iter().any(|other| other.name == part.name) {
            return Err(ArchiveError::DuplicateName { name: part.name.to_string() });
        }
        if part.kind == Kind::Json && parts[..at].iter().any(|other| other.kind != Kind::Json) {
            return Err(damaged("a document after other parts"));
        }
        if part.size > part.kind.max_size() {
            return Err(ArchiveError::TooLarge {
                part: part.name.to_string(),
                size: part.size,
                max: part.kind.max_size(),
            });
        }
    }
    Ok(())
}

fn encode_part(part: &Part, bytes: &mut Vec<u8>) {
    bytes.extend([part.kind.code(), u8::from(part.base.is_some()), 0, 0, 0, 0, 0, 0]);
    bytes.extend(part.size.to_le_bytes());
    bytes.extend(part.base.map_or([0; Digest::LENGTH], |base| *base.as_bytes()));
    let mut name = [0; Name::MAX];
    name[..part.name.as_str().len()].copy_from_slice(part.name.as_str().as_bytes());
    bytes.extend(name);
}

fn decode_part(entry: &[u8]) -> Result<Part> {
    let name = decode_name(&entry[48..ENTRY])?;
    let kind = Kind::of(entry[0]).ok_or(damaged("an unknown kind of part"))?;
    let base = Digest::from_bytes(array_at(entry, 16));
    let base = match entry[1] {
        0 if base.as_bytes() == &[0; Digest::LENGTH] => None,
        1 if kind == Kind::Disk => Some(base),
        _ => return Err(damaged("an unexpected base")),
    };
    if entry[2..8].iter().any(|byte| *byte != 0) {
        return Err(damaged("unknown flags of a part"));
    }
    Ok(Part { name, kind, size: u64::from_le_bytes(array_at(entry, 8)), base })
}

/// Decodes a name, which is padded with zeroes and contains none.
fn decode_name(bytes: &[u8]) -> Result<Name> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Name::new(&String::from_utf8_lossy(&bytes[..end]))
}

/// Reads the number at an offset that is known to be in range.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// Reads `N` bytes at an offset that is known to be in range.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_round_trips() {
        let part = |name, kind, size, base| Part { name: Name::new(name).unwrap(), kind, size, base };
        let parts = vec![
            part("manifest", Kind::Json, 3, None),
            part("devices", Kind::State, 5, None),
            part("memory", Kind::Memory, 1 << 40, None),
            part("disk", Kind::Disk, 7, Some(Digest::of(b"base"))),
        ];
        for lock in [None, Some(Lock { salt: [7; SALT], check: [9; CHECK] })] {
            let head = Head { lock, parts: parts.clone() };
            let bytes = head.encode();
            assert_eq!(bytes.len(), 96 + 4 * 80 + 32);
            let mut input = &[&bytes[..], b"rest"].concat()[..];
            assert_eq!(Head::read(&mut input).unwrap(), (head, bytes));
            assert_eq!(input, b"rest");
        }
    }
}

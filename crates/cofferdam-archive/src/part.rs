//! The parts of an archive.

use std::fmt;

use crate::digest::Digest;
use crate::error::{ArchiveError, Result};

/// The maximum size of a document, in bytes.
pub const MAX_JSON: u64 = 4 << 20;
/// The maximum size of a device state, in bytes.
pub const MAX_STATE: u64 = 1 << 30;
/// The maximum size of a memory or a disk, in bytes.
pub const MAX_PAGED: u64 = 8 << 40;

/// The name of a part. It is a word, never a path: this crate names no file after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The maximum length of a name, in bytes.
    pub const MAX: usize = 32;

    /// Creates a name: 1 to 32 of `a-z`, `0-9` and `-`, beginning with a letter.
    pub fn new(text: &str) -> Result<Self> {
        let has_valid_length = (1..=Self::MAX).contains(&text.len());
        let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
        if has_valid_length && begins && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        {
            return Ok(Self(text.to_owned()));
        }
        Err(ArchiveError::BadName { text: text.chars().take(2 * Self::MAX).collect() })
    }

    /// Returns the name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A document, which this crate does not interpret. Documents come first.
    Json,
    /// A device state: a few bytes to a few megabytes, compressed as a whole.
    State,
    /// A VM's memory, without zero pages and duplicates.
    Memory,
    /// A disk, without the pages of its base and without duplicates.
    Disk,
}

impl Kind {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Json => 1,
            Self::State => 2,
            Self::Memory => 3,
            Self::Disk => 4,
        }
    }

    pub(crate) const fn of(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Json),
            2 => Some(Self::State),
            3 => Some(Self::Memory),
            4 => Some(Self::Disk),
            _ => None,
        }
    }

    /// Returns the maximum size that the format allows, in bytes.
    pub(crate) const fn max_size(self) -> u64 {
        match self {
            Self::Json => MAX_JSON,
            Self::State => MAX_STATE,
            Self::Memory | Self::Disk => MAX_PAGED,
        }
    }

    /// Returns true if the part is stored page by page.
    pub const fn is_paged(self) -> bool {
        matches!(self, Self::Memory | Self::Disk)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::State => "state",
            Self::Memory => "memory",
            Self::Disk => "disk",
        })
    }
}

/// A part, as declared in the head of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The part's name.
    pub name: Name,
    /// The part's kind.
    pub kind: Kind,
    /// The restored size, in bytes. The part mostly takes less in the archive.
    pub size: u64,
    /// The SHA-256 of a disk's base, from which only differences are stored. Without one, the base is all zeroes.
    pub base: Option<Digest>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_no_paths() {
        for good in ["a", "disk", "disk-0", "z9-", &"n".repeat(32)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "/", ".", "..", "../a", "a/b", "a\0", "A", "9a", "-a", "a.b", "é", "a b", &"n".repeat(33)] {
            assert!(matches!(Name::new(bad), Err(ArchiveError::BadName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn every_kind_is_found_by_its_code() {
        for code in 0..=u8::MAX {
            assert_eq!(Kind::of(code).map(Kind::code), (1..=4).contains(&code).then_some(code));
        }
    }
}

//! Records, which describe the pages of a memory or a disk in sequence. Each covers the pages after those of the
//! previous one.
//!
//! ```text
//! kind u8 | 0 3 | pages u32 | from u64     and after Data the pages themselves
//! ```

use crate::head::{array_at, u32_at};

/// Size of a page, in bytes. The last page of a part may be shorter.
pub const PAGE: usize = 4096;
/// Size of a record without its pages, in bytes.
pub(crate) const RECORD: usize = 16;

/// A description of a number of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// Same as in the base. Zero without a base.
    Same(u32),
    /// Zero, where the base is not.
    Zero(u32),
    /// Data, which follows the record.
    Data(u32),
    /// A copy of earlier pages, from this page on.
    Copy(u32, u64),
}

impl Record {
    pub(crate) fn pages(self) -> u32 {
        match self {
            Self::Same(pages) | Self::Zero(pages) | Self::Data(pages) | Self::Copy(pages, _) => pages,
        }
    }

    /// Merges this record with the next, if possible.
    pub(crate) fn joined(self, next: Self) -> Option<Self> {
        let sum = self.pages().checked_add(next.pages())?;
        match (self, next) {
            (Self::Same(_), Self::Same(_)) => Some(Self::Same(sum)),
            (Self::Zero(_), Self::Zero(_)) => Some(Self::Zero(sum)),
            (Self::Data(_), Self::Data(_)) => Some(Self::Data(sum)),
            (Self::Copy(pages, from), Self::Copy(_, next)) if from + u64::from(pages) == next => {
                Some(Self::Copy(sum, from))
            }
            _ => None,
        }
    }

    pub(crate) fn encode(self) -> [u8; RECORD] {
        let (kind, from) = match self {
            Self::Same(_) => (1, 0),
            Self::Zero(_) => (2, 0),
            Self::Data(_) => (3, 0),
            Self::Copy(_, from) => (4, from),
        };
        let mut bytes = [0; RECORD];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&self.pages().to_le_bytes());
        bytes[8..].copy_from_slice(&from.to_le_bytes());
        bytes
    }

    /// Decodes a record. Returns `None` if the bytes are not a record.
    pub(crate) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let (pages, from) = (u32_at(bytes, 4), u64::from_le_bytes(array_at(bytes, 8)));
        if bytes[1..4] != [0; 3] || pages == 0 {
            return None;
        }
        match (bytes[0], from) {
            (1, 0) => Some(Self::Same(pages)),
            (2, 0) => Some(Self::Zero(pages)),
            (3, 0) => Some(Self::Data(pages)),
            (4, from) => Some(Self::Copy(pages, from)),
            _ => None,
        }
    }

    /// Returns the reason why this record is invalid at page `at`, if it is.
    pub(crate) fn fault(self, at: u64, size: u64, based: bool) -> Option<&'static str> {
        let end = at + u64::from(self.pages());
        if end > size.div_ceil(PAGE as u64) {
            return Some("beyond the end");
        }
        match self {
            Self::Zero(_) if !based => Some("zeroes without a base"),
            Self::Copy(pages, from) if from.checked_add(pages.into()).is_none_or(|last| last > at) => {
                Some("a copy of pages that do not exist yet")
            }
            Self::Copy(..) if end > size / PAGE as u64 => Some("a copy for the last, shorter page"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_sixteen_bytes_and_back() {
        for record in [Record::Same(1), Record::Zero(u32::MAX), Record::Data(3), Record::Copy(2, u64::MAX)] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        let mut bytes = Record::Data(3).encode();
        for (at, value) in [(0, 0), (0, 5), (1, 1), (3, 1), (4, 0), (8, 1), (15, 1)] {
            let before = std::mem::replace(&mut bytes[at], value);
            assert_eq!(Record::decode(&bytes), None, "{at}: {value}");
            bytes[at] = before;
        }
    }

    #[test]
    fn pages_follow_each_other_within_the_part() {
        let size = 10 * PAGE as u64 + 1;
        for (record, at, based, good) in [
            (Record::Same(11), 0, false, true),
            (Record::Same(12), 0, false, false),
            (Record::Data(1), 11, false, false),
            (Record::Zero(1), 0, false, false),
            (Record::Zero(1), 0, true, true),
            (Record::Copy(4, 0), 4, false, true),
            (Record::Copy(5, 0), 4, false, false),
            (Record::Copy(1, 4), 4, false, false),
            (Record::Copy(1, u64::MAX), 4, false, false),
            (Record::Copy(1, 0), 10, false, false),
        ] {
            assert_eq!(record.fault(at, size, based).is_none(), good, "{record:?} at {at}");
        }
    }
}

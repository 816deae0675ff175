//! Where pages were seen before: by their SHA-256, so that equal means equal, and for so many that memory stays bounded.

use std::collections::HashMap;

use crate::digest::Digest;

/// Pages that are remembered unless asked otherwise: about 900 MiB of different ones, in 11 MiB of memory. The number is
/// what a hash table of that size holds.
pub(crate) const PAGES: usize = 7 << 15;

/// Pages that were seen.
pub(crate) struct Table {
    pages: HashMap<Digest, u64>,
    most: usize,
}

impl Table {
    /// Remembers the first `most` different pages. Later ones are still found to be like these.
    pub(crate) fn new(most: usize) -> Self {
        Self { pages: HashMap::new(), most }
    }

    /// The page that was the same; if none was, this one is remembered while there is room.
    pub(crate) fn seen(&mut self, digest: Digest, page: u64) -> Option<u64> {
        if let Some(first) = self.pages.get(&digest) {
            return Some(*first);
        }
        if self.pages.len() < self.most {
            self.pages.insert(digest, page);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_remembers_the_first() {
        let mut table = Table::new(2);
        let digests: Vec<Digest> = (0..4u8).map(|byte| Digest::of(&[byte])).collect();
        for (page, digest) in digests.iter().enumerate() {
            assert_eq!(table.seen(*digest, page as u64), None);
        }
        let found: Vec<_> = digests.iter().map(|digest| table.seen(*digest, 9)).collect();
        assert_eq!(found, [Some(0), Some(1), None, None]);
    }
}

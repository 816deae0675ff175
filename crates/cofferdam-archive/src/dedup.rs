//! Page deduplication. Pages are compared by SHA-256, so equal digests mean equal pages. The number of remembered pages
//! is bounded, so memory is too.

use std::collections::HashMap;

use crate::digest::Digest;

/// Default number of remembered pages: about 900 MiB of distinct pages, in 11 MiB of memory. The number is the capacity
/// of a hash table of that size.
pub(crate) const PAGES: usize = 7 << 15;

/// A table of pages that were seen.
pub(crate) struct Table {
    pages: HashMap<Digest, u64>,
    max: usize,
}

impl Table {
    /// Creates a table that remembers the first `max` distinct pages. Later pages are still compared with these.
    pub(crate) fn new(max: usize) -> Self {
        Self { pages: HashMap::new(), max }
    }

    /// Returns an earlier page with the same digest. Without one, remembers this page while there is room.
    pub(crate) fn seen(&mut self, digest: Digest, page: u64) -> Option<u64> {
        if let Some(first) = self.pages.get(&digest) {
            return Some(*first);
        }
        if self.pages.len() < self.max {
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

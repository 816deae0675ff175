//! What a sandbox holds of its memory limit: linear memories, tables, and files, which lie in memory too.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count of bytes with a bound. Shared by everything that belongs to one sandbox.
#[derive(Debug)]
pub(crate) struct Account {
    used: AtomicU64,
    peak: AtomicU64,
    limit: u64,
}

impl Account {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { used: AtomicU64::new(0), peak: AtomicU64::new(0), limit: limit.unwrap_or(u64::MAX) }
    }

    /// Takes bytes if they fit.
    #[must_use]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, bytes: u64) {
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_the_peak_stays() {
        let account = Account::new(Some(10));
        assert!(account.take(10));
        assert!(!account.take(1));
        assert!(!account.take(u64::MAX));
        account.give(4);
        assert_eq!((account.used(), account.peak()), (6, 10));
        assert!(account.take(4));
    }
}

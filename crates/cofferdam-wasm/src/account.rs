//! Accounting of a sandbox's memory limit: linear memories, tables, and files, which are in memory too.

use std::sync::atomic::{AtomicU64, Ordering};

/// A byte counter with a limit, shared by all parts of one sandbox.
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

    /// Reserves bytes and returns true, or returns false if they exceed the limit.
    #[must_use]
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let within_limit = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within_limit) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Releases bytes that were reserved.
    pub(crate) fn release(&self, bytes: u64) {
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
        assert!(account.reserve(10));
        assert!(!account.reserve(1));
        assert!(!account.reserve(u64::MAX));
        account.release(4);
        assert_eq!((account.used(), account.peak()), (6, 10));
        assert!(account.reserve(4));
    }
}

//! The limits of a module's memories and tables.

use std::sync::Arc;

use wasmtime::ResourceLimiter;

use crate::account::Account;

/// The cost of a table element.
const ELEMENT: u64 = 16;
/// The maximum number of elements of one table, whatever the memory limit.
const MAX_ELEMENTS: usize = 1 << 20;
/// A module is one instance with at most one memory. A component can have several of each.
const MAX_INSTANCES: usize = 64;
const MAX_MEMORIES: usize = 16;
const MAX_TABLES: usize = 64;

/// Charges one exec's memories and tables to its sandbox's account, and releases them when dropped.
#[derive(Debug)]
pub(crate) struct Limiter {
    account: Arc<Account>,
    charged: u64,
    refused: bool,
}

impl Limiter {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self { account, charged: 0, refused: false }
    }

    /// Returns true if a growth was refused.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }

    /// Returns the charged bytes.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Resets the refusal flag for the next call.
    pub(crate) fn reset(&mut self) {
        self.refused = false;
    }

    /// Charges memory that is not allocated by growth.
    pub(crate) fn charge(&mut self, bytes: u64) -> bool {
        self.reserve(bytes)
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        let within_limit = self.account.reserve(bytes);
        if within_limit {
            self.charged += bytes;
        } else {
            self.refused = true;
        }
        within_limit
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.account.release(self.charged);
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        // A growth beyond the module's own maximum fails in any case.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        Ok(self.reserve(desired.saturating_sub(current) as u64))
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if desired > MAX_ELEMENTS {
            self.refused = true;
            return Ok(false);
        }
        Ok(self.reserve(desired.saturating_sub(current) as u64 * ELEMENT))
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_charged_and_given_back() {
        let account = Arc::new(Account::new(Some(1000)));
        let mut limiter = Limiter::new(Arc::clone(&account));
        assert!(limiter.memory_growing(0, 600, None).unwrap());
        assert!(!limiter.memory_growing(600, 700, Some(650)).unwrap());
        assert!(!limiter.refused());
        assert!(!limiter.memory_growing(600, 1200, None).unwrap());
        assert!(limiter.refused());
        assert!(limiter.table_growing(0, 25, None).unwrap());
        assert_eq!(account.used(), 1000);
        assert!(!Limiter::new(Arc::new(Account::new(None))).table_growing(0, MAX_ELEMENTS + 1, None).unwrap());
        drop(limiter);
        assert_eq!(account.used(), 0);
    }
}

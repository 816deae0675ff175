//! The memory budget that all snapshots of a backend share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_contract::ByteSize;

use crate::error::{Result, VmError};

/// The memory that is left to reserve.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<AtomicU64>);

/// A reservation, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Arc<AtomicU64>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(max: ByteSize) -> Self {
        Self(Arc::new(AtomicU64::new(max.as_bytes())))
    }

    /// Returns the bytes that are not reserved.
    #[cfg(test)]
    pub(crate) fn left(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Reserves exactly so many bytes, or fails.
    pub(crate) fn take(&self, bytes: u64) -> Result<Lease> {
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes));
        taken.map_err(|left| VmError::SnapshotMemoryExhausted { left })?;
        Ok(Lease { budget: Arc::clone(&self.0), bytes })
    }

    /// Reserves as many of these bytes as are left.
    pub(crate) fn take_up_to(&self, bytes: u64) -> Lease {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        Lease { budget: Arc::clone(&self.0), bytes: taken.unwrap_or_default().min(bytes) }
    }
}

impl Lease {
    /// Grows the reservation to so many bytes, or fails. Never shrinks it.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes);
        let taken = self.budget.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(more));
        taken.map_err(|left| VmError::SnapshotMemoryExhausted { left })?;
        self.bytes += more;
        Ok(())
    }

    /// Shrinks the reservation to so many bytes, if it is larger.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.budget.fetch_add(less, Ordering::AcqRel);
    }

    /// Returns the size of the reservation.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_it_comes_back() {
        let budget = Budget::new(ByteSize::from_bytes(10));
        let lease = budget.take(7).unwrap();
        assert!(matches!(budget.take(4), Err(VmError::SnapshotMemoryExhausted { left: 3 })));
        drop(lease);
        drop(budget.take(10).unwrap());
        assert_eq!(budget.left(), 10);
    }

    #[test]
    fn reserved_bytes_are_exclusive_until_released() {
        let budget = Budget::new(ByteSize::from_bytes(10));
        let mut first = budget.take_up_to(8);
        let second = budget.take_up_to(8);
        assert_eq!((first.bytes(), second.bytes(), budget.left()), (8, 2, 0));
        first.shrink(3);
        first.shrink(5);
        assert_eq!((first.bytes(), budget.left()), (3, 5));
        drop((first, second));
        assert_eq!(budget.left(), 10);
    }
}

//! The memory of the outputs that execs of one sandbox keep, bounded together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fewest bytes of output that an exec keeps if it asks for as many.
const MIN_RING: u64 = 64 << 10;

/// The memory of the outputs of one sandbox.
#[derive(Debug, Default)]
pub struct Rings {
    used: AtomicU64,
}

/// The memory of the output of one exec. It is free again when it is dropped.
#[derive(Debug)]
pub struct Ring {
    of: Arc<Rings>,
    bytes: AtomicU64,
}

impl Rings {
    /// Takes `requested` bytes, or what is left of `max` if that is not too little to be of use.
    pub fn take(self: &Arc<Self>, requested: u64, max: u64) -> Option<Ring> {
        let size =
            |used: u64| Some(requested.min(max.saturating_sub(used))).filter(|size| *size >= requested.min(MIN_RING));
        let mut bytes = 0;
        let taken = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            bytes = size(used)?;
            used.checked_add(bytes)
        });
        taken.ok().map(|_| Ring { of: Arc::clone(self), bytes: AtomicU64::new(bytes) })
    }

    /// Returns the bytes that are left of `max`.
    pub fn left(&self, max: u64) -> u64 {
        max.saturating_sub(self.used.load(Ordering::SeqCst))
    }
}

impl Ring {
    /// Returns the bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Gives back all but `needed` bytes.
    pub fn shrink(&self, needed: u64) {
        let before = self.bytes.fetch_min(needed, Ordering::SeqCst);
        self.of.used.fetch_sub(before.saturating_sub(needed), Ordering::SeqCst);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_bounded_together() {
        const KIB: u64 = 1 << 10;
        let (rings, max) = (Arc::new(Rings::default()), 200 * KIB);
        let (first, small) = (rings.take(128 * KIB, max).unwrap(), rings.take(KIB, max).unwrap());
        let rest = rings.take(128 * KIB, max).unwrap();
        assert_eq!((first.bytes(), small.bytes(), rest.bytes()), (128 * KIB, KIB, 71 * KIB));
        assert!(rings.take(128 * KIB, max).is_none() && rings.take(1, max).is_none());
        first.shrink(10 * KIB);
        first.shrink(20 * KIB);
        assert_eq!(rings.left(max), 118 * KIB);
        drop((first, small, rest));
        assert_eq!(rings.left(max), max);
    }
}

//! Counting semaphores for one exec's resources, within a limit for all execs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A counter of used slots with a limit.
#[derive(Debug)]
pub(crate) struct Slots {
    taken: AtomicUsize,
    max: usize,
}

/// A slot of the exec, together with a slot of the limit for all execs.
#[derive(Debug)]
pub(crate) struct Permit {
    own: Arc<Slots>,
    all: &'static Slots,
}

impl Slots {
    pub(crate) const fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max }
    }

    /// Acquires a slot of both, if both have a free one.
    pub(crate) fn acquire(own: &Arc<Self>, all: &'static Self) -> Option<Permit> {
        if !own.enter() {
            return None;
        }
        if !all.enter() {
            own.leave();
            return None;
        }
        Some(Permit { own: Arc::clone(own), all })
    }

    fn enter(&self) -> bool {
        let more = |taken: usize| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn leave(&self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.own.leave();
        self.all.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_slots_are_released() {
        static ALL: Slots = Slots::new(3);
        let (one, other) = (Arc::new(Slots::new(2)), Arc::new(Slots::new(2)));
        let held = [Slots::acquire(&one, &ALL).unwrap(), Slots::acquire(&one, &ALL).unwrap()];
        assert!(Slots::acquire(&one, &ALL).is_none());
        let third = Slots::acquire(&other, &ALL).unwrap();
        assert!(Slots::acquire(&other, &ALL).is_none());
        drop(held);
        assert!(Slots::acquire(&other, &ALL).is_some() && Slots::acquire(&one, &ALL).is_some());
        drop(third);
        assert_eq!((ALL.taken.load(Ordering::Acquire), one.taken.load(Ordering::Acquire)), (0, 0));
    }
}

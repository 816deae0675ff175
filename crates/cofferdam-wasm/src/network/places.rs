//! Places, of which an exec has some and all together have some.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many may hold something at once.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicUsize,
    most: usize,
}

/// A place of one's own exec, and one of those of all.
#[derive(Debug)]
pub(crate) struct Place {
    own: Arc<Places>,
    all: &'static Places,
}

impl Places {
    pub(crate) const fn new(most: usize) -> Self {
        Self { taken: AtomicUsize::new(0), most }
    }

    /// Takes a place of both, if both have one.
    pub(crate) fn take(own: &Arc<Self>, all: &'static Self) -> Option<Place> {
        if !own.enter() {
            return None;
        }
        if !all.enter() {
            own.leave();
            return None;
        }
        Some(Place { own: Arc::clone(own), all })
    }

    fn enter(&self) -> bool {
        let more = |taken: usize| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn leave(&self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.own.leave();
        self.all.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_hold_and_places_come_back() {
        static ALL: Places = Places::new(3);
        let (one, other) = (Arc::new(Places::new(2)), Arc::new(Places::new(2)));
        let held = [Places::take(&one, &ALL).unwrap(), Places::take(&one, &ALL).unwrap()];
        assert!(Places::take(&one, &ALL).is_none());
        let third = Places::take(&other, &ALL).unwrap();
        assert!(Places::take(&other, &ALL).is_none());
        drop(held);
        assert!(Places::take(&other, &ALL).is_some() && Places::take(&one, &ALL).is_some());
        drop(third);
        assert_eq!((ALL.taken.load(Ordering::Acquire), one.taken.load(Ordering::Acquire)), (0, 0));
    }
}

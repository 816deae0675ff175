//! The slots of interpreters of one kind, and the time of the next refill. Pure: the caller supplies time and
//! randomness.
//!
//! ```text
//! missing --> being created --filled--> idle --take--> gone
//!                '--failed--> backoff  '--too old, dead--> returned, to be closed
//! ```

use std::time::Duration;

use super::config::InterpreterTimes;
use crate::pool::backoff::Backoff;

/// The slots of one kind.
#[derive(Debug)]
pub(super) struct Slots<T> {
    ready: usize,
    times: InterpreterTimes,
    waiting: Vec<(Duration, T)>,
    making: usize,
    not_before: Duration,
    backoff: Backoff,
    draining: bool,
}

impl<T> Slots<T> {
    pub(super) fn new(ready: usize, times: InterpreterTimes) -> Self {
        let (waiting, backoff) = (Vec::new(), Backoff::default());
        Self { ready, times, waiting, making: 0, not_before: Duration::ZERO, backoff, draining: false }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of interpreters that refills aim at.
    pub(super) fn target(&self) -> usize {
        if self.draining { 0 } else { self.ready }
    }

    pub(super) fn making(&self) -> usize {
        self.making
    }

    /// Takes the youngest usable interpreter.
    pub(super) fn take(&mut self, now: Duration, usable: impl Fn(&T) -> bool) -> Option<T> {
        let index = self.waiting.iter().rposition(|(_, one)| usable(one))?;
        self.not_before = now + self.times.refill_delay;
        Some(self.waiting.remove(index).1)
    }

    /// Returns the number of interpreters to start now, and counts them as being created. At most one at a time, so
    /// that a refill does not compete with running requests.
    pub(super) fn begin(&mut self, now: Duration) -> usize {
        let missing = self.ready.saturating_sub(self.waiting.len() + self.making);
        let may = !self.draining && self.making == 0 && missing > 0 && self.due(now).is_none();
        self.making += usize::from(may);
        usize::from(may)
    }

    /// Stores a created interpreter. Returns it if there is no free slot or the pool drains.
    pub(super) fn filled(&mut self, one: T, now: Duration) -> Option<T> {
        self.making -= 1;
        self.backoff.succeeded();
        if self.draining || self.waiting.len() >= self.ready {
            return Some(one);
        }
        self.waiting.push((now, one));
        None
    }

    /// Records a failed creation. `chance`, from 0 to 1, adds jitter to the backoff.
    pub(super) fn failed(&mut self, now: Duration, chance: f64) {
        self.making -= 1;
        self.backoff.failed(now, self.times.first_backoff, self.times.max_backoff, chance);
    }

    /// Removes and returns dead interpreters and those that are too old.
    pub(super) fn remove_unusable(&mut self, now: Duration, alive: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
        let (mut dead, mut old) = (Vec::new(), Vec::new());
        for (created_at, one) in std::mem::take(&mut self.waiting) {
            if !alive(&one) {
                dead.push(one);
            } else if created_at + self.times.max_age <= now {
                old.push(one);
            } else {
                self.waiting.push((created_at, one));
            }
        }
        (dead, old)
    }

    /// Returns the time of the next poll.
    pub(super) fn next_poll(&self, now: Duration) -> Duration {
        let missing = self.ready > self.waiting.len() + self.making && self.making == 0;
        let due = if missing { self.due(now) } else { None };
        due.unwrap_or(now + self.times.check_every).min(now + self.times.check_every)
    }

    /// Stops refills, and returns all idle interpreters.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.draining = true;
        std::mem::take(&mut self.waiting).into_iter().map(|(_, one)| one).collect()
    }

    /// Returns the earliest time of the next creation, if that is later than `now`.
    fn due(&self, now: Duration) -> Option<Duration> {
        let delay = Some(self.not_before).filter(|time| *time > now);
        self.backoff.wait_until(now).into_iter().chain(delay).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn slots(ready: usize) -> Slots<u32> {
        Slots::new(
            ready,
            InterpreterTimes { refill_delay: SECOND, max_age: 10 * SECOND, ..InterpreterTimes::default() },
        )
    }

    #[test]
    fn slots_are_filled_one_at_a_time_after_a_delay() {
        let mut slots = slots(2);
        let now = Duration::ZERO;
        assert_eq!((slots.begin(now), slots.begin(now)), (1, 0));
        assert_eq!(slots.filled(1, now), None);
        assert_eq!(slots.begin(now), 1);
        assert_eq!(slots.filled(2, now), None);
        assert_eq!(slots.begin(now), 0);
        assert_eq!(slots.take(now, |_| true), Some(2));
        assert_eq!((slots.begin(now), slots.next_poll(now)), (0, SECOND));
        assert_eq!(slots.begin(SECOND), 1);
    }

    #[test]
    fn the_old_and_the_dead_are_given_back() {
        let mut slots = slots(3);
        for (one, created_at) in [(1, 0), (2, 5), (3, 5)] {
            slots.begin(created_at * SECOND);
            assert_eq!(slots.filled(one, created_at * SECOND), None);
        }
        assert_eq!(slots.remove_unusable(10 * SECOND, |one| *one != 3), (vec![3], vec![1]));
        assert_eq!(slots.drain(), [2]);
        assert_eq!(slots.begin(99 * SECOND), 0);
    }

    proptest! {
        /// Promise (Server): The pool never prepares more interpreters than configured.
        #[test]
        fn never_more_than_asked_for(steps in prop::collection::vec(0u8..4, 0..200), ready in 0usize..4) {
            let mut slots = slots(ready);
            let mut now = Duration::ZERO;
            for step in steps {
                match step {
                    0 => drop(slots.begin(now)),
                    1 if slots.making() > 0 => prop_assert_eq!(slots.filled(0, now), None),
                    2 if slots.making() > 0 => slots.failed(now, 0.5),
                    _ => drop(slots.take(now, |_| true)),
                }
                now += SECOND / 3;
                prop_assert!(slots.waiting() + slots.making() <= ready && slots.making() <= 1);
                prop_assert!(slots.next_poll(now) > now || slots.begin(now) == 0);
            }
        }
    }
}

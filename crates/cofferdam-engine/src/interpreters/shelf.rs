//! Those of one kind that wait, and when the next one is made. Pure: the caller brings time and chance.
//!
//! ```text
//! wanted --> making --filled--> waiting --take--> gone
//!              '--failed--> wait, longer each time  '--too old, dead--> given back to be closed
//! ```

use std::time::Duration;

use super::config::InterpreterTimes;
use crate::pool::backoff::Backoff;

/// One kind's shelf.
#[derive(Debug)]
pub(super) struct Shelf<T> {
    ready: usize,
    times: InterpreterTimes,
    waiting: Vec<(Duration, T)>,
    making: usize,
    not_before: Duration,
    backoff: Backoff,
    draining: bool,
}

impl<T> Shelf<T> {
    pub(super) fn new(ready: usize, times: InterpreterTimes) -> Self {
        let (waiting, backoff) = (Vec::new(), Backoff::default());
        Self { ready, times, waiting, making: 0, not_before: Duration::ZERO, backoff, draining: false }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn making(&self) -> usize {
        self.making
    }

    /// Takes the youngest that will do.
    pub(super) fn take(&mut self, now: Duration, will_do: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.waiting.iter().rposition(|(_, one)| will_do(one))?;
        self.not_before = now + self.times.refill_delay;
        Some(self.waiting.remove(place).1)
    }

    /// How many to begin making now; they count as being made from here on. One at a time: they are made so that
    /// somebody else's work goes fast, not to compete with it.
    pub(super) fn begin(&mut self, now: Duration) -> usize {
        let missing = self.ready.saturating_sub(self.waiting.len() + self.making);
        let may = !self.draining && self.making == 0 && missing > 0 && self.due(now).is_none();
        self.making += usize::from(may);
        usize::from(may)
    }

    /// Puts in one that was made; gives it back where nobody wants it any more.
    pub(super) fn filled(&mut self, one: T, now: Duration) -> Option<T> {
        self.making -= 1;
        self.backoff.succeeded();
        if self.draining || self.waiting.len() >= self.ready {
            return Some(one);
        }
        self.waiting.push((now, one));
        None
    }

    /// Notes that one could not be made.
    pub(super) fn failed(&mut self, now: Duration, chance: f64) {
        self.making -= 1;
        self.backoff.failed(now, self.times.first_backoff, self.times.longest_backoff, chance);
    }

    /// Takes out what died, and what is too old.
    pub(super) fn sort_out(&mut self, now: Duration, alive: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
        let (mut dead, mut old) = (Vec::new(), Vec::new());
        for (made, one) in std::mem::take(&mut self.waiting) {
            if !alive(&one) {
                dead.push(one);
            } else if made + self.times.max_age <= now {
                old.push(one);
            } else {
                self.waiting.push((made, one));
            }
        }
        (dead, old)
    }

    /// When to look again.
    pub(super) fn look_again(&self, now: Duration) -> Duration {
        let missing = self.ready > self.waiting.len() + self.making && self.making == 0;
        let due = if missing { self.due(now) } else { None };
        due.unwrap_or(now + self.times.check_every).min(now + self.times.check_every)
    }

    /// Makes no more, and gives back all that wait.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.draining = true;
        std::mem::take(&mut self.waiting).into_iter().map(|(_, one)| one).collect()
    }

    /// When the next may be made, if that is later than `now`.
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

    fn shelf(ready: usize) -> Shelf<u32> {
        Shelf::new(
            ready,
            InterpreterTimes { refill_delay: SECOND, max_age: 10 * SECOND, ..InterpreterTimes::default() },
        )
    }

    #[test]
    fn one_at_a_time_and_after_a_delay() {
        let mut shelf = shelf(2);
        let now = Duration::ZERO;
        assert_eq!((shelf.begin(now), shelf.begin(now)), (1, 0));
        assert_eq!(shelf.filled(1, now), None);
        assert_eq!(shelf.begin(now), 1);
        assert_eq!(shelf.filled(2, now), None);
        assert_eq!(shelf.begin(now), 0);
        assert_eq!(shelf.take(now, |_| true), Some(2));
        assert_eq!((shelf.begin(now), shelf.look_again(now)), (0, SECOND));
        assert_eq!(shelf.begin(SECOND), 1);
    }

    #[test]
    fn the_old_and_the_dead_are_given_back() {
        let mut shelf = shelf(3);
        for (one, made) in [(1, 0), (2, 5), (3, 5)] {
            shelf.begin(made * SECOND);
            assert_eq!(shelf.filled(one, made * SECOND), None);
        }
        assert_eq!(shelf.sort_out(10 * SECOND, |one| *one != 3), (vec![3], vec![1]));
        assert_eq!(shelf.drain(), [2]);
        assert_eq!(shelf.begin(99 * SECOND), 0);
    }

    proptest! {
        #[test]
        fn never_more_than_asked_for(steps in prop::collection::vec(0u8..4, 0..200), ready in 0usize..4) {
            let mut shelf = shelf(ready);
            let mut now = Duration::ZERO;
            for step in steps {
                match step {
                    0 => drop(shelf.begin(now)),
                    1 if shelf.making() > 0 => prop_assert_eq!(shelf.filled(0, now), None),
                    2 if shelf.making() > 0 => shelf.failed(now, 0.5),
                    _ => drop(shelf.take(now, |_| true)),
                }
                now += SECOND / 3;
                prop_assert!(shelf.waiting() + shelf.making() <= ready && shelf.making() <= 1);
                prop_assert!(shelf.look_again(now) > now || shelf.begin(now) == 0);
            }
        }
    }
}

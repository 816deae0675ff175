//! Where every place of a pool stands, and what to do next. Pure: no lock, no IO, no clock; the shell brings the time
//! and carries out what is decided here.
//!
//! A place is the right to have one sandbox alive. There are `max` of them:
//!
//! ```text
//!         refill           made            granted           made           lease ends
//!  free ---------> filling -----> idle -------------> making -----> leased ------------> closing --closed--> free
//!   |                |             |                    ^  |
//!   |                |             '--expired, died, evicted, drained--> closing        |
//!   |                '--failed--> free                  |  '--failed--> free
//!   '--granted------------------------------------------'
//! ```
//!
//! A sandbox goes this way once: there is no way from leased back to idle.

use std::collections::VecDeque;
use std::time::Duration;

use cofferdam_contract::TenantId;

use super::backoff::Backoff;
use super::queue::{FairQueue, Full, Ticket};
use crate::{ClaimKind, PoolConfig};

/// How a place stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody has it.
    Free,
    /// A sandbox is being made ahead.
    Filling,
    /// A sandbox waits.
    Idle,
    /// A sandbox is being made, or claimed, for somebody.
    Making,
    /// Somebody uses a sandbox.
    Leased,
    /// A sandbox is being closed.
    Closing,
}

const STANDINGS: usize = 6;

/// Which way a place can go.
fn valid_transition(from: Standing, to: Standing) -> bool {
    use Standing as S;
    matches!(
        (from, to),
        (S::Free, S::Filling | S::Making)
            | (S::Filling, S::Idle | S::Free | S::Closing)
            | (S::Idle, S::Making | S::Closing)
            | (S::Making, S::Leased | S::Free)
            | (S::Leased, S::Closing)
            | (S::Closing, S::Free)
    )
}

/// One that waits.
#[derive(Debug)]
struct Idle<W> {
    warm: W,
    since: Duration,
}

/// What a claim is given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<W, T> {
    /// One that waited, and fits.
    Warm(T, W),
    /// A place to make one.
    Cold(T, ClaimKind),
    /// Nothing yet: this one is to be closed first.
    Evict(W),
}

/// The places of a pool: `W` is a sandbox that waits, `T` is somebody who waits for one.
#[derive(Debug)]
pub(crate) struct Ledger<W, T> {
    config: PoolConfig,
    places: [usize; STANDINGS],
    /// Oldest first.
    idle: VecDeque<Idle<W>>,
    waiting: FairQueue<T>,
    /// How many are to be kept ready at present.
    target: usize,
    backoff: Backoff,
    /// Since when a refill gives way to creates.
    yielding_since: Option<Duration>,
    /// Something that waited was claimed since the last look.
    claimed: bool,
    /// Until when a refill leaves the processors to what was claimed, and since when it does so.
    quiet: Option<(Duration, Duration)>,
    /// The backend makes none ahead.
    all_cold: bool,
    draining: bool,
}

impl<W, T> Ledger<W, T> {
    pub(crate) fn new(config: PoolConfig) -> Self {
        let mut places = [0; STANDINGS];
        places[Standing::Free as usize] = config.max;
        Self {
            places,
            idle: VecDeque::new(),
            waiting: FairQueue::default(),
            target: config.min_warm,
            backoff: Backoff::default(),
            yielding_since: None,
            claimed: false,
            quiet: None,
            all_cold: false,
            draining: false,
            config,
        }
    }

    /// Places that stand so.
    pub(crate) fn count(&self, standing: Standing) -> usize {
        self.places[standing as usize]
    }

    /// Sandboxes alive, or on their way in or out.
    pub(crate) fn used(&self) -> usize {
        self.config.max - self.count(Standing::Free)
    }

    /// Claims that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Moves one place on.
    pub(crate) fn shift(&mut self, from: Standing, to: Standing) {
        assert!(valid_transition(from, to) && self.count(from) > 0, "no place goes from {from:?} to {to:?}");
        self.places[from as usize] -= 1;
        self.places[to as usize] += 1;
    }

    /// Lines somebody up. A bound of the queue holds for those who have to wait, not for those served at once.
    pub(crate) fn enter(&mut self, tenant: &TenantId, who: T) -> Result<Ticket, Full> {
        let at_once = self.waiting.is_empty() && (!self.idle.is_empty() || self.count(Standing::Free) > 0);
        if !at_once {
            self.waiting.check(tenant, self.config.max_waiting, self.config.max_waiting_per_tenant)?;
        }
        Ok(self.waiting.push(tenant, who))
    }

    /// Takes somebody out of the queue who gives up; false if they are out already.
    pub(crate) fn leave(&mut self, ticket: &Ticket) -> bool {
        self.waiting.remove(ticket).is_some()
    }

    /// Who is served next, and with what. The places it takes are counted as taken.
    pub(crate) fn next(&mut self, fits: impl Fn(&T, &W) -> bool) -> Option<Next<W, T>> {
        let first = self.waiting.peek()?;
        // The youngest that fits: what is beyond demand grows old at the other end, and expires.
        if let Some(place) = self.idle.iter().rposition(|idle| fits(first, &idle.warm)) {
            let (who, idle) = self.waiting.pop().zip(self.idle.remove(place))?;
            self.shift(Standing::Idle, Standing::Making);
            self.claimed = true;
            return Some(Next::Warm(who, idle.warm));
        }
        let kind = if self.idle.is_empty() { ClaimKind::ColdEmpty } else { ClaimKind::ColdUnfit };
        if self.count(Standing::Free) > 0 {
            let who = self.waiting.pop()?;
            self.shift(Standing::Free, Standing::Making);
            return Some(Next::Cold(who, kind));
        }
        // One for each claim that waits, less what comes free anyway.
        if self.count(Standing::Closing) < self.waiting.len() {
            return self.take_oldest().map(Next::Evict);
        }
        None
    }

    /// A claim found none ready: keeps one more from now on.
    pub(crate) fn found_empty(&mut self) {
        self.target = (self.target + 1).min(self.config.max_warm).min(self.config.max);
    }

    /// How many to make ahead now. Their places are counted as taken.
    pub(crate) fn refill(&mut self, now: Duration) -> usize {
        self.note_claims(now);
        let count = self.wanted().min(self.at_once());
        if count == 0 || self.backoff.wait_until(now).is_some() {
            self.yielding_since = None;
            return 0;
        }
        if self.quiet_until().is_some_and(|until| now < until) {
            return 0;
        }
        self.quiet = None;
        if self.count(Standing::Making) > 0 {
            let since = *self.yielding_since.get_or_insert(now);
            if now < since + self.config.refill_patience {
                return 0;
            }
        }
        self.yielding_since = None;
        for _ in 0..count {
            self.shift(Standing::Free, Standing::Filling);
        }
        count
    }

    fn note_claims(&mut self, now: Duration) {
        if std::mem::take(&mut self.claimed) {
            let since = self.quiet.map_or(now, |(_, since)| since);
            self.quiet = Some((now + self.config.refill_delay, since));
        }
    }

    /// Until when a refill leaves the processors to what was claimed: not for ever, and not once the last one is gone.
    fn quiet_until(&self) -> Option<Duration> {
        let (until, since) = self.quiet.filter(|_| !self.idle.is_empty())?;
        Some(until.min(since + self.config.refill_patience))
    }

    /// How many are missing for which there is a place that nobody waits for.
    fn wanted(&self) -> usize {
        if self.draining || self.all_cold || !self.waiting.is_empty() {
            return 0;
        }
        let coming = self.idle.len() + self.count(Standing::Filling);
        self.target.saturating_sub(coming).min(self.count(Standing::Free))
    }

    /// How many more may be made at the same time; one at a time while they fail.
    fn at_once(&self) -> usize {
        let most = if self.backoff.is_failing() { 1 } else { self.config.refill_at_once };
        most.saturating_sub(self.count(Standing::Filling))
    }

    /// One was made ahead. Gives it back, to be closed, where nobody wants it any more.
    pub(crate) fn filled(&mut self, warm: W, now: Duration) -> Option<W> {
        self.backoff.succeeded();
        if self.draining {
            self.shift(Standing::Filling, Standing::Closing);
            return Some(warm);
        }
        self.shift(Standing::Filling, Standing::Idle);
        self.idle.push_back(Idle { warm, since: now });
        None
    }

    /// One could not be made ahead. `chance` in 0 to 1 spreads the wait.
    pub(crate) fn fill_failed(&mut self, now: Duration, chance: f64) {
        self.shift(Standing::Filling, Standing::Free);
        self.backoff.failed(now, self.config.first_backoff, self.config.longest_backoff, chance);
    }

    /// The backend makes none ahead, and need not be asked again.
    pub(crate) fn fill_unsupported(&mut self) {
        self.shift(Standing::Filling, Standing::Free);
        self.all_cold = true;
    }

    /// Takes out those that died.
    pub(crate) fn reap(&mut self, is_alive: impl Fn(&W) -> bool) -> Vec<W> {
        if self.idle.iter().all(|idle| is_alive(&idle.warm)) {
            return Vec::new();
        }
        self.take_where(|idle| !is_alive(&idle.warm))
    }

    /// Takes out those that are too old, a few at a time so that their successors keep up, and one that is too many.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<W> {
        let mut room = if self.count(Standing::Filling) == 0 { self.config.refill_at_once } else { 0 };
        let mut gone = Vec::new();
        while room > 0 && self.idle.front().is_some_and(|oldest| oldest.since + self.config.max_age <= now) {
            gone.extend(self.take_oldest());
            room -= 1;
        }
        while self.surplus_until().is_some_and(|until| until <= now) {
            self.target = self.config.min_warm.max(self.target.min(self.idle.len()).saturating_sub(1));
            gone.extend(self.take_oldest());
        }
        gone
    }

    /// When the oldest beyond the minimum has idled too long.
    fn surplus_until(&self) -> Option<Duration> {
        let oldest = self.idle.front().filter(|_| self.idle.len() > self.config.min_warm)?;
        Some(oldest.since + self.config.idle_time)
    }

    /// When to look again, if nothing happens until then.
    pub(crate) fn look_again(&self, now: Duration) -> Option<Duration> {
        if self.draining {
            return None;
        }
        let refills = self.wanted() > 0 && self.at_once() > 0;
        let retry = self.backoff.wait_until(now).filter(|_| refills);
        let patience = self.yielding_since.filter(|_| refills).map(|since| since + self.config.refill_patience);
        let old = self.idle.front().filter(|_| self.count(Standing::Filling) == 0);
        let old = old.map(|oldest| oldest.since + self.config.max_age);
        let check = (!self.idle.is_empty()).then(|| now + self.config.check_every);
        let quiet = self.quiet_until().filter(|_| refills);
        [retry, patience, quiet, old, self.surplus_until(), check].into_iter().flatten().min()
    }

    /// Refuses everybody from now on; gives back who waits and what is idle, to be closed.
    pub(crate) fn drain(&mut self) -> (Vec<T>, Vec<W>) {
        self.draining = true;
        (self.waiting.drain(), self.take_where(|_| true))
    }

    fn take_oldest(&mut self) -> Option<W> {
        let oldest = self.idle.pop_front()?;
        self.shift(Standing::Idle, Standing::Closing);
        Some(oldest.warm)
    }

    fn take_where(&mut self, unwanted: impl Fn(&Idle<W>) -> bool) -> Vec<W> {
        let (gone, kept): (Vec<_>, Vec<_>) = self.idle.drain(..).partition(&unwanted);
        self.idle = kept.into();
        for _ in &gone {
            self.shift(Standing::Idle, Standing::Closing);
        }
        gone.into_iter().map(|idle| idle.warm).collect()
    }
}

#[cfg(test)]
mod tests;

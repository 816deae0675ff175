//! The states of all slots of a pool, and the next action. Pure: no lock, no IO, no clock. The caller supplies the time
//! and carries out the decisions.
//!
//! A slot is the right to have one live sandbox. There are `max` slots:
//!
//! ```text
//!         refill          created          granted        created         lease ends
//!  free ---------> filling -----> idle -------------> making -----> leased ------------> closing --closed--> free
//!   |                |             |                    ^  |
//!   |                |             '--expired, died, evicted, drained--> closing        |
//!   |                '--failed--> free                  |  '--failed--> free
//!   '--granted------------------------------------------'
//! ```
//!
//! A sandbox takes this way once: there is no transition from leased back to idle.

use std::collections::VecDeque;
use std::time::Duration;

use cofferdam_contract::TenantId;

use super::backoff::Backoff;
use super::queue::{FairQueue, Full, Ticket};
use crate::{ClaimKind, PoolConfig};

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// The slot is unused.
    Free,
    /// A sandbox is being prepared.
    Filling,
    /// A prepared sandbox is idle.
    Idle,
    /// A sandbox is being created or claimed for a caller.
    Making,
    /// A caller uses a sandbox.
    Leased,
    /// A sandbox is being closed.
    Closing,
}

const SLOT_STATES: usize = 6;

/// Returns true if a slot may change from one state to the other.
fn valid_transition(from: SlotState, to: SlotState) -> bool {
    use SlotState as S;
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

/// An idle prepared sandbox.
#[derive(Debug)]
struct Idle<W> {
    warm: W,
    since: Duration,
}

/// The decision for the next queued claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<W, T> {
    /// Claim this idle sandbox, which is compatible.
    Warm(T, W),
    /// Create a new sandbox in a free slot.
    Cold(T, ClaimKind),
    /// Close this idle sandbox first, to free its slot.
    Evict(W),
}

/// The slots of a pool. `W` is a prepared sandbox, `T` is a queued claim.
#[derive(Debug)]
pub(crate) struct Slots<W, T> {
    config: PoolConfig,
    slots: [usize; SLOT_STATES],
    /// Idle sandboxes, oldest first.
    idle: VecDeque<Idle<W>>,
    waiting: FairQueue<T>,
    /// The current target number of idle sandboxes.
    target: usize,
    backoff: Backoff,
    /// The time since which a refill yields to creates.
    yielding_since: Option<Duration>,
    /// True if an idle sandbox was claimed since the last poll.
    claimed: bool,
    /// The end and the begin of the time in which refills leave the processors to claimed sandboxes.
    quiet: Option<(Duration, Duration)>,
    /// True if the backend cannot prepare sandboxes.
    all_cold: bool,
    draining: bool,
}

impl<W, T> Slots<W, T> {
    pub(crate) fn new(config: PoolConfig) -> Self {
        let mut slots = [0; SLOT_STATES];
        slots[SlotState::Free as usize] = config.max;
        Self {
            slots,
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

    /// Returns the number of slots in a state.
    pub(crate) fn count(&self, state: SlotState) -> usize {
        self.slots[state as usize]
    }

    /// Returns the number of slots that are not free.
    pub(crate) fn used(&self) -> usize {
        self.config.max - self.count(SlotState::Free)
    }

    /// Returns the number of idle sandboxes that refills aim at: 0 if the backend cannot prepare any.
    pub(crate) fn target(&self) -> usize {
        if self.all_cold || self.draining { 0 } else { self.target.min(self.config.max) }
    }

    /// Returns the number of queued claims.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Moves one slot to another state.
    pub(crate) fn shift(&mut self, from: SlotState, to: SlotState) {
        assert!(valid_transition(from, to) && self.count(from) > 0, "no slot changes from {from:?} to {to:?}");
        self.slots[from as usize] -= 1;
        self.slots[to as usize] += 1;
    }

    /// Adds a claim to the queue. The bounds of the queue apply only to a claim that has to wait.
    pub(crate) fn enter(&mut self, tenant: &TenantId, waiter: T) -> Result<Ticket, Full> {
        let at_once = self.waiting.is_empty() && (!self.idle.is_empty() || self.count(SlotState::Free) > 0);
        if !at_once {
            self.waiting.check(tenant, self.config.max_waiting, self.config.max_waiting_per_tenant)?;
        }
        Ok(self.waiting.push(tenant, waiter))
    }

    /// Removes a cancelled claim from the queue. Returns false if it was already removed.
    pub(crate) fn leave(&mut self, ticket: &Ticket) -> bool {
        self.waiting.remove(ticket).is_some()
    }

    /// Returns the decision for the next claim, and moves the slot that it uses.
    pub(crate) fn next(&mut self, is_compatible: impl Fn(&T, &W) -> bool) -> Option<Next<W, T>> {
        let first = self.waiting.peek()?;
        // The youngest compatible one is used. Surplus sandboxes thus age at the other end and expire.
        if let Some(index) = self.idle.iter().rposition(|idle| is_compatible(first, &idle.warm)) {
            let (waiter, idle) = self.waiting.pop().zip(self.idle.remove(index))?;
            self.shift(SlotState::Idle, SlotState::Making);
            self.claimed = true;
            return Some(Next::Warm(waiter, idle.warm));
        }
        let kind = if self.idle.is_empty() { ClaimKind::ColdEmpty } else { ClaimKind::ColdUnfit };
        if self.count(SlotState::Free) > 0 {
            let waiter = self.waiting.pop()?;
            self.shift(SlotState::Free, SlotState::Making);
            return Some(Next::Cold(waiter, kind));
        }
        // Evicts one sandbox for each queued claim, minus the slots that are about to become free.
        if self.count(SlotState::Closing) < self.waiting.len() {
            return self.take_oldest().map(Next::Evict);
        }
        None
    }

    /// Raises the target by one after a claim found no idle sandbox.
    pub(crate) fn found_empty(&mut self) {
        self.target = (self.target + 1).min(self.config.max_warm).min(self.config.max);
    }

    /// Returns the number of sandboxes to prepare now, and moves their slots.
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
        if self.count(SlotState::Making) > 0 {
            let since = *self.yielding_since.get_or_insert(now);
            if now < since + self.config.refill_yield_timeout {
                return 0;
            }
        }
        self.yielding_since = None;
        for _ in 0..count {
            self.shift(SlotState::Free, SlotState::Filling);
        }
        count
    }

    fn note_claims(&mut self, now: Duration) {
        if std::mem::take(&mut self.claimed) {
            let since = self.quiet.map_or(now, |(_, since)| since);
            self.quiet = Some((now + self.config.refill_delay, since));
        }
    }

    /// Returns the end of the time in which refills leave the processors to claimed sandboxes. That time is bounded,
    /// and ends when no sandbox is idle.
    fn quiet_until(&self) -> Option<Duration> {
        let (until, since) = self.quiet.filter(|_| !self.idle.is_empty())?;
        Some(until.min(since + self.config.refill_yield_timeout))
    }

    /// Returns the number of missing sandboxes that have a free slot which no claim is waiting for.
    fn wanted(&self) -> usize {
        if self.draining || self.all_cold || !self.waiting.is_empty() {
            return 0;
        }
        let coming = self.idle.len() + self.count(SlotState::Filling);
        self.target.saturating_sub(coming).min(self.count(SlotState::Free))
    }

    /// Returns the number of further sandboxes that may be prepared concurrently. One at a time while refills fail.
    fn at_once(&self) -> usize {
        let max = if self.backoff.is_failing() { 1 } else { self.config.refill_at_once };
        max.saturating_sub(self.count(SlotState::Filling))
    }

    /// Stores a prepared sandbox. Returns it, to be closed, if the pool drains.
    pub(crate) fn filled(&mut self, warm: W, now: Duration) -> Option<W> {
        self.backoff.succeeded();
        if self.draining {
            self.shift(SlotState::Filling, SlotState::Closing);
            return Some(warm);
        }
        self.shift(SlotState::Filling, SlotState::Idle);
        self.idle.push_back(Idle { warm, since: now });
        None
    }

    /// Records a failed refill. `chance`, from 0 to 1, adds jitter to the backoff.
    pub(crate) fn fill_failed(&mut self, now: Duration, chance: f64) {
        self.shift(SlotState::Filling, SlotState::Free);
        self.backoff.failed(now, self.config.first_backoff, self.config.max_backoff, chance);
    }

    /// Records that the backend cannot prepare sandboxes. It is not asked again.
    pub(crate) fn fill_unsupported(&mut self) {
        self.shift(SlotState::Filling, SlotState::Free);
        self.all_cold = true;
    }

    /// Removes and returns dead sandboxes.
    pub(crate) fn reap(&mut self, is_alive: impl Fn(&W) -> bool) -> Vec<W> {
        if self.idle.iter().all(|idle| is_alive(&idle.warm)) {
            return Vec::new();
        }
        self.take_where(|idle| !is_alive(&idle.warm))
    }

    /// Removes and returns sandboxes that are too old, a few at a time so that their replacements keep up, and surplus
    /// ones.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<W> {
        let mut room = if self.count(SlotState::Filling) == 0 { self.config.refill_at_once } else { 0 };
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

    /// Returns the time at which the oldest sandbox beyond the minimum has been idle for too long.
    fn surplus_until(&self) -> Option<Duration> {
        let oldest = self.idle.front().filter(|_| self.idle.len() > self.config.min_warm)?;
        Some(oldest.since + self.config.idle_time)
    }

    /// Returns the time of the next poll, if nothing happens before.
    pub(crate) fn next_poll(&self, now: Duration) -> Option<Duration> {
        if self.draining {
            return None;
        }
        let refills = self.wanted() > 0 && self.at_once() > 0;
        // In the order of `refill`: a wait that it has not come to is not over, even if its time is.
        let yield_until = || self.yielding_since.map(|since| since + self.config.refill_yield_timeout);
        let wait = self.backoff.wait_until(now).or_else(|| self.quiet_until().filter(|until| *until > now));
        let refill = wait.or_else(yield_until).filter(|_| refills);
        let old = self.idle.front().filter(|_| self.count(SlotState::Filling) == 0);
        let old = old.map(|oldest| oldest.since + self.config.max_age);
        let check = (!self.idle.is_empty()).then(|| now + self.config.check_every);
        [refill, old, self.surplus_until(), check].into_iter().flatten().min()
    }

    /// Rejects all further claims. Returns the queued claims, and the idle sandboxes to be closed.
    pub(crate) fn drain(&mut self) -> (Vec<T>, Vec<W>) {
        self.draining = true;
        (self.waiting.drain(), self.take_where(|_| true))
    }

    fn take_oldest(&mut self) -> Option<W> {
        let oldest = self.idle.pop_front()?;
        self.shift(SlotState::Idle, SlotState::Closing);
        Some(oldest.warm)
    }

    fn take_where(&mut self, unwanted: impl Fn(&Idle<W>) -> bool) -> Vec<W> {
        let (gone, retained): (Vec<_>, Vec<_>) = self.idle.drain(..).partition(&unwanted);
        self.idle = retained.into();
        for _ in &gone {
            self.shift(SlotState::Idle, SlotState::Closing);
        }
        gone.into_iter().map(|idle| idle.warm).collect()
    }
}

#[cfg(test)]
mod tests;

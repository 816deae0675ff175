//! What a pool, its leases and its tasks share: the ledger behind a lock, and how its decisions are carried out.
//!
//! The lock is never held over an await, nor while something of a backend is dropped or awaited. Under it a backend is
//! asked only what its contract calls cheap: whether a spec fits, and whether a sandbox is alive.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Backend, Error, Result, Sandbox, Spec, TenantId, Warm};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::lease::Lease;
use super::ledger::{Ledger, Next, Standing};
use super::make::{Grant, Make, make};
use super::queue::{Full, Ticket};
use crate::{ClaimKind, PoolConfig, PoolMetrics, error};

/// Somebody who waits for a sandbox.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) spec: Spec,
    pub(super) make: Make,
    pub(super) since: Instant,
    pub(super) reply: oneshot::Sender<Result<Lease>>,
}

impl Waiter {
    fn fits(&self, warm: &dyn Warm) -> bool {
        matches!(self.make, Make::Claim) && warm.fits(&self.spec)
    }
}

/// What the lock guards.
pub(super) struct State {
    pub(super) ledger: Ledger<Box<dyn Warm>, Waiter>,
    /// What happened so far; the counts of what is now are filled in from the ledger.
    pub(super) tally: PoolMetrics,
    /// Sandboxes that are leased, by the number of their lease.
    leased: HashMap<u64, Arc<dyn Sandbox>>,
    next_lease: u64,
    /// A shutdown has ended all leases, and ends those that come.
    all_ended: bool,
}

pub(super) struct Shared {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) template: Spec,
    pub(super) config: PoolConfig,
    runtime: Handle,
    start: Instant,
    state: Mutex<State>,
    /// Tells the keeper that something changed.
    pub(super) changed: Notify,
    /// Places that are not free.
    used: watch::Sender<usize>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("backend", &self.backend).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(backend: Arc<dyn Backend>, template: Spec, config: PoolConfig, runtime: Handle) -> Self {
        let ledger = Ledger::new(config.clone());
        let state =
            State { ledger, tally: PoolMetrics::default(), leased: HashMap::new(), next_lease: 1, all_ended: false };
        Self {
            backend,
            template,
            config,
            runtime,
            start: Instant::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
            used: watch::Sender::new(0),
        }
    }

    /// Time since the pool was made.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The moment that [`Self::now`] calls `time`.
    pub(super) fn moment(&self, time: Duration) -> Instant {
        self.start + time
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The ledger changes only by its own whole steps, so that a panic elsewhere leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(task)
    }

    /// Gets a sandbox: waits for a place, and for the making.
    pub(super) async fn obtain(self: &Arc<Self>, spec: Spec, make: Make) -> Result<Lease> {
        spec.validate()?;
        let operation = make.operation();
        let (reply, answer) = oneshot::channel();
        let tenant = spec.tenant().clone();
        let waiter = Waiter { spec, make, since: Instant::now(), reply };
        let mut waiting = Waiting { ticket: Some(self.enter(&tenant, waiter)?), shared: self };
        self.pump();
        match timeout(self.config.claim_timeout, answer).await {
            Ok(Ok(lease)) => {
                waiting.ticket = None;
                lease
            }
            Ok(Err(_)) => Err(error::given_up(operation)),
            Err(_) => {
                self.lock().tally.timed_out += 1;
                match waiting.give_up() {
                    true => Err(error::waited_too_long(self.config.claim_timeout, self.config.max)),
                    false => Err(error::made_too_slowly(operation, self.config.claim_timeout)),
                }
            }
        }
    }

    fn enter(&self, tenant: &TenantId, waiter: Waiter) -> Result<Ticket> {
        let mut state = self.lock();
        if state.ledger.is_draining() {
            return Err(error::shut_down());
        }
        state.ledger.enter(tenant, waiter).map_err(|full| {
            state.tally.refused += 1;
            refusal(full, tenant)
        })
    }

    /// Gives out what can be given out.
    pub(super) fn pump(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                let dead = state.ledger.reap(|warm| warm.is_alive());
                state.tally.died += dead.len() as u64;
                let next = state.ledger.next(|waiter, warm| waiter.fits(&**warm));
                match &next {
                    Some(Next::Evict(_)) => state.tally.evicted += 1,
                    Some(Next::Cold(waiter, ClaimKind::ColdEmpty)) if matches!(waiter.make, Make::Claim) => {
                        state.ledger.found_empty();
                    }
                    _ => {}
                }
                drop(state);
                self.close_unused(dead);
                next
            };
            match next {
                Some(Next::Warm(waiter, warm)) => self.begin(waiter, Grant::Warm(warm)),
                Some(Next::Cold(waiter, kind)) => self.begin(waiter, Grant::Cold(kind)),
                Some(Next::Evict(warm)) => self.close_unused([warm]),
                None => break,
            }
        }
        self.changed.notify_one();
    }

    fn begin(self: &Arc<Self>, waiter: Waiter, grant: Grant) {
        let place = Place::new(self, Standing::Making);
        self.lock().tally.wait_time.add(waiter.since.elapsed());
        self.spawn(make(place, waiter, grant));
    }

    /// Closes, in the background, what nobody claimed.
    pub(super) fn close_unused(self: &Arc<Self>, unused: impl IntoIterator<Item = Box<dyn Warm>>) {
        for warm in unused {
            let place = Place::new(self, Standing::Closing);
            self.spawn(async move {
                let closed = warm.close().await;
                place.note_close(&closed);
            });
        }
    }

    /// One could not be made ahead.
    pub(super) fn fill_failed(&self, error: &Error) {
        let now = self.now();
        let mut state = self.lock();
        state.tally.refill_failures += 1;
        state.tally.refill_error = Some(error.to_string());
        state.ledger.fill_failed(now, fastrand::f64());
    }

    /// Hands a sandbox out.
    pub(super) fn lease(self: &Arc<Self>, place: Place, sandbox: Arc<dyn Sandbox>) -> u64 {
        let mut state = self.lock();
        let number = state.next_lease;
        state.next_lease += 1;
        state.leased.insert(number, sandbox);
        let too_late = state.all_ended;
        drop(state);
        place.shift(Standing::Leased).forget();
        // What gave way to this one can go on.
        self.changed.notify_one();
        if too_late {
            drop(self.end_lease(number));
        }
        number
    }

    /// Ends a lease: closes its sandbox in the background, and frees its place after that. `None` if it has ended.
    pub(super) fn end_lease(self: &Arc<Self>, number: u64) -> Option<JoinHandle<Result<()>>> {
        let sandbox = self.lock().leased.remove(&number)?;
        let place = Place::new(self, Standing::Leased).shift(Standing::Closing);
        Some(self.spawn(async move {
            let closed = sandbox.close().await;
            drop(sandbox);
            place.note_close(&closed);
            closed
        }))
    }

    /// Ends every lease.
    pub(super) fn end_leases(self: &Arc<Self>) {
        let numbers: Vec<u64> = {
            let mut state = self.lock();
            state.all_ended = true;
            state.leased.keys().copied().collect()
        };
        for number in numbers {
            drop(self.end_lease(number));
        }
    }

    /// Tells who waits for all places to come free. The count is read inside, so that the last one told is the newest.
    fn publish(&self) {
        self.used.send_if_modified(|used| std::mem::replace(used, self.used()) != *used);
    }

    /// Tells who waits for places to come free, and gives out what did.
    pub(super) fn settle(self: &Arc<Self>) {
        self.publish();
        self.pump();
    }

    /// Refuses everybody from now on, and closes what nobody has claimed.
    pub(super) fn drain(self: &Arc<Self>) {
        let (waiting, idle) = self.lock().ledger.drain();
        for waiter in waiting {
            // Who went away needs no answer.
            let _ = waiter.reply.send(Err(error::shut_down()));
        }
        self.close_unused(idle);
        self.changed.notify_one();
    }

    pub(super) fn used(&self) -> usize {
        self.lock().ledger.used()
    }

    /// Waits until every place is free; false if that takes longer.
    pub(super) async fn emptied_within(&self, patience: Duration) -> bool {
        let mut used = self.used.subscribe();
        // The sender lives as long as this, so that waiting ends by a count or by the time only.
        timeout(patience, used.wait_for(|used| *used == 0)).await.is_ok()
    }

    pub(super) fn metrics(&self) -> PoolMetrics {
        let state = self.lock();
        let ledger = &state.ledger;
        PoolMetrics {
            warm: ledger.count(Standing::Idle),
            claimed: ledger.count(Standing::Leased),
            making: ledger.count(Standing::Making) + ledger.count(Standing::Filling),
            closing: ledger.count(Standing::Closing),
            waiting: ledger.waiting(),
            ..state.tally.clone()
        }
    }
}

fn refusal(full: Full, tenant: &TenantId) -> Error {
    match full {
        Full::All(waiting) => error::queue_full(waiting),
        Full::Tenant(waiting) => error::tenant_queue_full(tenant.as_str(), waiting),
    }
}

/// Somebody's place in the queue; dropping it gives the place up.
struct Waiting<'a> {
    shared: &'a Shared,
    ticket: Option<Ticket>,
}

impl Waiting<'_> {
    /// Leaves the queue; false if it was served already.
    fn give_up(&mut self) -> bool {
        self.ticket.take().is_some_and(|ticket| self.shared.lock().ledger.leave(&ticket))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A place that a task has taken. It comes free when this is dropped, whatever became of the task.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    /// `None` once somebody else answers for it.
    standing: Option<Standing>,
}

impl Place {
    /// The guard of a place that the ledger counts as standing so.
    pub(super) fn new(shared: &Arc<Shared>, standing: Standing) -> Self {
        shared.publish();
        Self { shared: Arc::clone(shared), standing: Some(standing) }
    }

    /// Moves it on.
    pub(super) fn shift(mut self, to: Standing) -> Self {
        if let Some(standing) = self.standing.as_mut() {
            self.shared.lock().ledger.shift(*standing, to);
            *standing = to;
        }
        self
    }

    /// Leaves it as it stands: somebody else answers for it.
    pub(super) fn forget(mut self) {
        self.standing = None;
    }

    /// Counts a close that failed.
    pub(super) fn note_close(&self, closed: &Result<()>) {
        if closed.is_err() {
            self.shared.lock().tally.close_failures += 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.standing {
            None => return,
            // The backend panicked; to try again at once would be to panic for ever.
            Some(Standing::Filling) => self.shared.fill_failed(&error::given_up("warm")),
            Some(standing) => self.shared.lock().ledger.shift(standing, Standing::Free),
        }
        self.shared.settle();
    }
}

//! The state shared by a pool, its leases and its tasks: the slots behind a lock, and the execution of their decisions.
//!
//! The lock is never held across an await, nor while a backend's object is dropped or awaited. Under the lock only
//! backend calls run that the contract defines as cheap: compatibility with a spec, and liveness of a sandbox.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Error, PreparedSandbox, Result, Sandbox, Spec, TenantId};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::create::{Grant, Operation, create};
use super::lease::Lease;
use super::queue::{Full, Ticket};
use super::slots::{Next, SlotState, Slots};
use crate::{ClaimKind, PoolConfig, PoolMetrics, error};

/// A caller that is waiting for a sandbox.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) spec: Spec,
    pub(super) operation: Operation,
    pub(super) since: Instant,
    pub(super) reply: oneshot::Sender<Result<Lease>>,
}

impl Waiter {
    fn is_compatible(&self, warm: &dyn PreparedSandbox) -> bool {
        matches!(self.operation, Operation::Claim) && warm.is_compatible(&self.spec)
    }
}

/// The state guarded by the lock.
pub(super) struct State {
    pub(super) slots: Slots<Box<dyn PreparedSandbox>, Waiter>,
    /// The counters. The current numbers are filled in from the slots.
    pub(super) tally: PoolMetrics,
    /// Leased sandboxes, by the number of their lease.
    leased: HashMap<u64, Arc<dyn Sandbox>>,
    next_lease: u64,
    /// True after a shutdown has ended all leases. A later lease is ended immediately.
    all_ended: bool,
}

pub(super) struct Shared {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) template: Spec,
    pub(super) config: PoolConfig,
    runtime: Handle,
    start: Instant,
    state: Mutex<State>,
    /// Notifies the refill task of a change.
    pub(super) changed: Notify,
    /// The number of slots that are not free.
    used: watch::Sender<usize>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("backend", &self.backend).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(backend: Arc<dyn Backend>, template: Spec, config: PoolConfig, runtime: Handle) -> Self {
        let slots = Slots::new(config.clone());
        let state =
            State { slots, tally: PoolMetrics::default(), leased: HashMap::new(), next_lease: 1, all_ended: false };
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

    /// Returns the time since the pool was created.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Converts a time of [`Self::now`] to an instant.
    pub(super) fn moment(&self, time: Duration) -> Instant {
        self.start + time
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The slots change only in complete steps, so that a panic elsewhere leaves them consistent.
        self.state.lock()
    }

    pub(super) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(task)
    }

    /// Waits for a slot and for the creation, and returns the lease.
    pub(super) async fn obtain(self: &Arc<Self>, spec: Spec, operation: Operation) -> Result<Lease> {
        spec.validate()?;
        let name = operation.name();
        let (reply, answer) = oneshot::channel();
        let tenant = spec.tenant().clone();
        let waiter = Waiter { spec, operation, since: Instant::now(), reply };
        let mut waiting = QueueEntry { ticket: Some(self.enter(&tenant, waiter)?), shared: self };
        self.pump();
        match timeout(self.config.claim_timeout, answer).await {
            Ok(Ok(lease)) => {
                waiting.ticket = None;
                lease
            }
            Ok(Err(_)) => Err(error::task_lost(name)),
            Err(_) => {
                self.lock().tally.timed_out += 1;
                match waiting.give_up() {
                    true => Err(error::claim_timed_out(self.config.claim_timeout, self.config.max)),
                    false => Err(error::create_timed_out(name, self.config.claim_timeout)),
                }
            }
        }
    }

    fn enter(&self, tenant: &TenantId, waiter: Waiter) -> Result<Ticket> {
        let mut state = self.lock();
        if state.slots.is_draining() {
            return Err(error::shut_down());
        }
        state.slots.enter(tenant, waiter).map_err(|full| {
            state.tally.refused += 1;
            refusal(full, tenant)
        })
    }

    /// Serves queued claims as long as there are slots.
    pub(super) fn pump(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                let dead = state.slots.reap(|warm| warm.is_alive());
                state.tally.died += dead.len() as u64;
                let next = state.slots.next(|waiter, warm| waiter.is_compatible(&**warm));
                match &next {
                    Some(Next::Evict(_)) => state.tally.evicted += 1,
                    Some(Next::Cold(waiter, ClaimKind::ColdEmpty)) if matches!(waiter.operation, Operation::Claim) => {
                        state.slots.found_empty();
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
        let slot = Slot::new(self, SlotState::Making);
        self.lock().tally.wait_time.add(waiter.since.elapsed());
        self.spawn(create(slot, waiter, grant));
    }

    /// Closes unclaimed sandboxes in the background.
    pub(super) fn close_unused(self: &Arc<Self>, unused: impl IntoIterator<Item = Box<dyn PreparedSandbox>>) {
        for warm in unused {
            let slot = Slot::new(self, SlotState::Closing);
            self.spawn(async move {
                let closed = warm.close().await;
                slot.note_close(&closed);
            });
        }
    }

    /// Records a failed refill.
    pub(super) fn fill_failed(&self, error: &Error) {
        let now = self.now();
        let mut state = self.lock();
        state.tally.refill_failures += 1;
        state.tally.refill_error = Some(error.to_string());
        state.slots.fill_failed(now, fastrand::f64());
    }

    /// Registers a lease on a sandbox and returns its number.
    pub(super) fn lease(self: &Arc<Self>, slot: Slot, sandbox: Arc<dyn Sandbox>) -> u64 {
        let mut state = self.lock();
        let number = state.next_lease;
        state.next_lease += 1;
        state.leased.insert(number, sandbox);
        let too_late = state.all_ended;
        drop(state);
        slot.shift(SlotState::Leased).forget();
        // Refills that yielded to this create can continue.
        self.changed.notify_one();
        if too_late {
            drop(self.end_lease(number));
        }
        number
    }

    /// Ends a lease: closes its sandbox in the background and then frees its slot. Returns `None` if the lease has
    /// already ended.
    pub(super) fn end_lease(self: &Arc<Self>, number: u64) -> Option<JoinHandle<Result<()>>> {
        let sandbox = self.lock().leased.remove(&number)?;
        let slot = Slot::new(self, SlotState::Leased).shift(SlotState::Closing);
        Some(self.spawn(async move {
            let closed = sandbox.close().await;
            drop(sandbox);
            slot.note_close(&closed);
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

    /// Reports the number of used slots to tasks that wait for an empty pool. The count is read inside the closure, so
    /// that the last value sent is the newest.
    fn publish(&self) {
        self.used.send_if_modified(|used| std::mem::replace(used, self.used()) != *used);
    }

    /// Reports the number of used slots, and serves queued claims.
    pub(super) fn settle(self: &Arc<Self>) {
        self.publish();
        self.pump();
    }

    /// Rejects all further claims, and closes idle sandboxes.
    pub(super) fn drain(self: &Arc<Self>) {
        let (waiting, idle) = self.lock().slots.drain();
        for waiter in waiting {
            // The receiver of a cancelled claim is gone and needs no answer.
            let _ = waiter.reply.send(Err(error::shut_down()));
        }
        self.close_unused(idle);
        self.changed.notify_one();
    }

    pub(super) fn used(&self) -> usize {
        self.lock().slots.used()
    }

    /// Waits until every slot is free. Returns false after `limit`.
    pub(super) async fn emptied_within(&self, limit: Duration) -> bool {
        let mut used = self.used.subscribe();
        // The sender lives as long as `self`, so the wait ends only by the count or by the timeout.
        timeout(limit, used.wait_for(|used| *used == 0)).await.is_ok()
    }

    pub(super) fn metrics(&self) -> PoolMetrics {
        let state = self.lock();
        let slots = &state.slots;
        PoolMetrics {
            warm: slots.count(SlotState::Idle),
            target: slots.target(),
            refilling: slots.count(SlotState::Filling),
            claimed: slots.count(SlotState::Leased),
            making: slots.count(SlotState::Making) + slots.count(SlotState::Filling),
            closing: slots.count(SlotState::Closing),
            waiting: slots.waiting(),
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

/// The entry of a claim in the queue. Dropping it cancels the claim.
struct QueueEntry<'a> {
    shared: &'a Shared,
    ticket: Option<Ticket>,
}

impl QueueEntry<'_> {
    /// Leaves the queue. Returns false if the claim was already served.
    fn give_up(&mut self) -> bool {
        self.ticket.take().is_some_and(|ticket| self.shared.lock().slots.leave(&ticket))
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A slot that a task owns. Dropping it frees the slot, even if the task panicked.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) shared: Arc<Shared>,
    /// The state of the slot; `None` after the ownership was passed on.
    state: Option<SlotState>,
}

impl Slot {
    /// Creates the guard of a slot that is counted in this state.
    pub(super) fn new(shared: &Arc<Shared>, state: SlotState) -> Self {
        shared.publish();
        Self { shared: Arc::clone(shared), state: Some(state) }
    }

    /// Moves the slot to another state.
    pub(super) fn shift(mut self, to: SlotState) -> Self {
        if let Some(state) = self.state.as_mut() {
            self.shared.lock().slots.shift(*state, to);
            *state = to;
        }
        self
    }

    /// Leaves the slot in its state: another owner is responsible for it.
    pub(super) fn forget(mut self) {
        self.state = None;
    }

    /// Counts a close that failed.
    pub(super) fn note_close(&self, closed: &Result<()>) {
        if closed.is_err() {
            self.shared.lock().tally.close_failures += 1;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        match self.state {
            None => return,
            // The backend panicked. An immediate retry would panic again and again.
            Some(SlotState::Filling) => self.shared.fill_failed(&error::task_lost("warm")),
            Some(state) => self.shared.lock().slots.shift(state, SlotState::Free),
        }
        self.shared.settle();
    }
}

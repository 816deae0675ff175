//! Admission: the book of reservations and the fair queue behind a lock, with callers that wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cofferdam_contract::{Error, ErrorKind, Limits, Result, TenantId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::quota::{Book, Capacity, Demand, FairQueue, Prices, Quota, QuotaFile, Refused, Reservation, Ticket, day_of};
use crate::refusal::{exhausted, overloaded};
use crate::store::{Usage, UsageRow};

/// Settings of the queue for a full host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBounds {
    /// Requests that wait at once.
    pub waiting: usize,
    /// Requests of one tenant that wait at once.
    pub waiting_of_tenant: usize,
    /// Time that a request waits.
    pub wait: Duration,
    /// Time without a break that requests of one tenant that do not fit block those of others.
    pub block: Duration,
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self { waiting: 16_384, waiting_of_tenant: 4096, wait: Duration::from_secs(30), block: Duration::from_secs(5) }
    }
}

/// Admits sandboxes and execs.
#[derive(Debug)]
pub struct Admission {
    state: Mutex<State>,
    bounds: QueueBounds,
    /// The operator's prices.
    prices: Mutex<Option<Prices>>,
    /// A moment by both clocks, so that times never go back.
    start: (Instant, Duration),
}

#[derive(Debug)]
struct State {
    book: Book,
    queue: FairQueue<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    demand: Demand,
    answer: oneshot::Sender<Result<Grant, Refused>>,
}

/// A reservation that is released when it is dropped.
#[derive(Debug)]
pub struct Grant {
    of: Arc<Admission>,
    reservation: Option<Reservation>,
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.of.state.lock().book.release(reservation);
            self.of.admit_waiting();
        }
    }
}

impl Admission {
    /// Creates an admission with the quota of tenants that have none of their own.
    pub fn new(default: Quota, capacity: Capacity, bounds: QueueBounds) -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let state = State { book: Book::new(default, capacity), queue: FairQueue::new(bounds.block) };
        Arc::new(Self { state: Mutex::new(state), bounds, prices: Mutex::default(), start: (Instant::now(), since) })
    }

    fn now(&self) -> Duration {
        self.start.1 + self.start.0.elapsed()
    }

    /// Checks that a sandbox has the limits that quotas and the capacity of the host count.
    ///
    /// # Errors
    /// - `Denied` for a sandbox without one of them.
    pub fn check_limits(&self, tenant: &TenantId, limits: &Limits) -> Result<()> {
        let missing = self.state.lock().book.missing_limit(tenant, limits);
        missing.map_or(Ok(()), |limit| {
            let message = format!("a quota counts the limit {limit} of sandboxes, and this sandbox has none");
            Err(Error::new(ErrorKind::Denied, "create", message).with_remedy(format!("set the limit {limit}")))
        })
    }

    /// Returns true if a quota counts the bytes that sandboxes of a tenant send and receive.
    pub fn counts_egress(&self, tenant: &TenantId) -> bool {
        self.state.lock().book.counts_egress(tenant)
    }

    /// Reserves what a sandbox needs. Waits in the fair queue while the host is full.
    ///
    /// # Errors
    /// - `ResourceExhausted` with the time of a retry, if the tenant's quota is used up.
    /// - `ResourceExhausted` without one, if the host never has as much.
    /// - `Unavailable` with the time of a retry, if the host stays full or too many requests wait.
    pub async fn sandbox(self: &Arc<Self>, tenant: &TenantId, demand: Demand) -> Result<Grant> {
        let deadline = self.now() + self.bounds.wait;
        let (ticket, answer) = {
            let mut state = self.state.lock();
            let now = self.now();
            if !state.book.could_fit(demand) {
                let message = "the sandbox is larger than the room that this server has for all";
                return Err(Error::new(ErrorKind::ResourceExhausted, "create", message)
                    .with_remedy("ask for less memory or disk"));
            }
            if state.queue.is_empty() {
                match state.book.reserve(tenant, demand, now) {
                    Ok(reservation) => return Ok(self.grant(reservation)),
                    Err(refused @ (Refused::Quota { .. } | Refused::Total { .. })) => {
                        return Err(refusal("create", refused));
                    }
                    Err(Refused::Full) => {}
                }
            }
            // The quota of the tenant is not that of the queue.
            state.book.check(tenant, demand, now).map_err(|refused| refusal("create", refused))?;
            let QueueBounds { waiting, waiting_of_tenant, wait, .. } = self.bounds;
            if state.queue.len() >= waiting || state.queue.len_of(tenant) >= waiting_of_tenant {
                return Err(overloaded("create", "too many requests wait for capacity on this server", wait));
            }
            let (sender, answer) = oneshot::channel();
            let weight = state.book.quota(tenant).weight;
            let waiter = Waiter { demand, answer: sender };
            (state.queue.push(now, tenant, weight, deadline, waiter), answer)
        };
        // The position in the queue is given back if the caller no longer waits.
        let _place = QueueEntry { of: self, deadline, ticket };
        // It may fit beside a larger one that waits.
        self.admit_waiting();
        match tokio::time::timeout(self.bounds.wait, answer).await {
            Ok(Ok(Ok(grant))) => Ok(grant),
            Ok(Ok(Err(refused))) => Err(refusal("create", refused)),
            Ok(Err(_)) | Err(_) => {
                Err(overloaded("create", "the server stayed full for too long", self.bounds.wait / 2))
            }
        }
    }

    /// Reserves what a sandbox of another process of this server has.
    pub fn hold(self: &Arc<Self>, tenant: &TenantId, demand: Demand) -> Grant {
        let reservation = self.state.lock().book.hold(tenant, demand);
        self.grant(reservation)
    }

    fn grant(self: &Arc<Self>, reservation: Reservation) -> Grant {
        Grant { of: Arc::clone(self), reservation: Some(reservation) }
    }

    /// Lets requests pass those that have blocked the queue for long enough. Runs until it is dropped.
    pub async fn serve_waiting(self: Arc<Self>) {
        let mut interval = tokio::time::interval((self.bounds.block / 8).max(Duration::from_millis(10)));
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.admit_waiting();
        }
    }

    /// Gives free capacity to waiting requests, in the order of the queue.
    fn admit_waiting(self: &Arc<Self>) {
        let mut answers = Vec::new();
        {
            let mut locked = self.state.lock();
            let (state, now) = (&mut *locked, self.now());
            // Requests that waited too long learn it when their sender is dropped.
            while state.queue.expire(now).is_some() {}
            loop {
                let State { book, queue } = state;
                // A tenant whose quota was used up meanwhile gets its refusal, and does not block the others.
                let next = queue.pop(now, |tenant, waiter| {
                    waiter.answer.is_closed()
                        || book.check(tenant, waiter.demand, now).is_err()
                        || book.has_room(waiter.demand)
                });
                let Some((tenant, waiter)) = next else { break };
                if !waiter.answer.is_closed() {
                    let reserved = book.reserve(&tenant, waiter.demand, now);
                    answers.push((waiter.answer, reserved.map(|reservation| self.grant(reservation))));
                }
            }
        }
        // A grant that nothing waits for is released here, outside of the lock.
        for (answer, granted) in answers {
            drop(answer.send(granted));
        }
    }

    /// Counts a request against a tenant's rate.
    ///
    /// # Errors
    /// - `ResourceExhausted` with the time of a retry.
    pub fn request(&self, tenant: &TenantId) -> Result<()> {
        let now = self.now();
        self.state.lock().book.request(tenant, now).map_err(|refused| refusal("admit", refused))
    }

    /// Counts the start of an exec against a tenant's rate and quotas.
    ///
    /// # Errors
    /// - `ResourceExhausted` with the time of a retry.
    pub fn exec(&self, tenant: &TenantId) -> Result<()> {
        let now = self.now();
        self.state.lock().book.exec(tenant, now).map_err(|refused| refusal("start", refused))
    }

    /// Checks that a tenant may write further audit records.
    ///
    /// # Errors
    /// - `ResourceExhausted` with the time of a retry.
    pub fn audit(&self, tenant: &TenantId) -> Result<()> {
        let now = self.now();
        self.state.lock().book.audit(tenant, now).map_err(|refused| {
            refusal("audit", refused)
                .with_remedy("wait until the next day (UTC), or ask the operator for a larger quota")
        })
    }

    /// Adds what was used.
    pub fn add(&self, row: &UsageRow) {
        if let Ok(tenant) = TenantId::new(row.tenant.clone()) {
            self.state.lock().book.add(&tenant, row.day, &row.usage);
        }
    }

    /// Raises what was used to what the database has, to which another process adds.
    pub fn raise(&self, row: &UsageRow) {
        if let Ok(tenant) = TenantId::new(row.tenant.clone()) {
            self.state.lock().book.raise(&tenant, row.day, &row.usage);
        }
    }

    /// Replaces the quotas of tenants that differ from the default.
    pub fn set_quotas(self: &Arc<Self>, quotas: BTreeMap<TenantId, Quota>) {
        {
            let mut state = self.state.lock();
            let now = self.now();
            state.book.set_quotas(quotas);
            state.book.prune(now);
        }
        self.admit_waiting();
    }

    /// Returns the prices of usage, if the operator has set any.
    pub fn prices(&self) -> Option<Prices> {
        self.prices.lock().clone()
    }

    /// Replaces the quotas and prices of the operator's file.
    pub fn set_default(self: &Arc<Self>, file: &QuotaFile) {
        *self.prices.lock() = file.prices.clone();
        self.state.lock().book.set_default(file.quota, file.total);
        self.admit_waiting();
    }

    /// Returns the disk of a tenant's live sandboxes, in mebibytes.
    pub fn disk_mib(&self, tenant: &TenantId) -> u64 {
        self.state.lock().book.disk_mib(tenant)
    }

    /// Returns today as days since 1970.
    pub fn today(&self) -> i64 {
        day_of(self.now())
    }

    /// Returns the number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Returns a tenant's quota, live sandboxes, their memory in mebibytes, and usage of today.
    pub fn state_of(&self, tenant: &TenantId) -> (Quota, u32, u64, Usage) {
        let now = self.now();
        let state = self.state.lock();
        let (sandboxes, memory_mib, used) = state.book.state(tenant, now);
        (state.book.quota(tenant), sandboxes, memory_mib, used)
    }
}

/// An entry of the queue.
struct QueueEntry<'a> {
    of: &'a Arc<Admission>,
    deadline: Duration,
    ticket: Ticket,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let cancelled = self.of.state.lock().queue.cancel(self.deadline, self.ticket);
        // It may have blocked others.
        if cancelled.is_some() {
            self.of.admit_waiting();
        }
    }
}

fn refusal(operation: &'static str, refused: Refused) -> Error {
    match refused {
        Refused::Quota { what, wait } => {
            exhausted(operation, format!("the tenant's quota '{what}' is used up"), wait).with_context("quota", what)
        }
        Refused::Total { what, wait } => {
            let message = format!("the quota '{what}' of all tenants of this server is used up");
            overloaded(operation, message, wait).with_context("quota", what)
        }
        Refused::Full => overloaded(operation, "the server is full", Duration::from_secs(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Demand = Demand { memory_mib: 1, disk_mib: 0 };

    fn tenant(number: usize) -> TenantId {
        TenantId::new(format!("t{number}")).unwrap()
    }

    fn full_at(sandboxes: u32, bounds: QueueBounds) -> Arc<Admission> {
        let quota = Quota { sandboxes: Some(2), ..Quota::default() };
        Admission::new(quota, Capacity { sandboxes: Some(sandboxes), memory: None }, bounds)
    }

    /// Promise (Server): A request waits while the server is full, and gets the room that becomes free.
    #[tokio::test]
    async fn a_request_waits_for_room() {
        let admission = full_at(1, QueueBounds::default());
        let first = admission.sandbox(&tenant(1), SMALL).await.unwrap();
        let waiting: Vec<_> = (2..=4)
            .map(|number| {
                let admission = Arc::clone(&admission);
                tokio::spawn(
                    async move { admission.sandbox(&tenant(number), SMALL).await.map(|grant| (number, grant)) },
                )
            })
            .collect();
        while admission.waiting() < 3 {
            tokio::task::yield_now().await;
        }
        drop(first);
        for (expected, waiting) in (2..=4).zip(waiting) {
            let (number, grant) = waiting.await.unwrap().unwrap();
            assert_eq!(number, expected);
            drop(grant);
        }
        assert_eq!((admission.waiting(), admission.state_of(&tenant(2)).1), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn full_server_and_used_quota_are_distinguished() {
        let wait = Duration::from_secs(5);
        let bounds = QueueBounds { waiting: 1, waiting_of_tenant: 1, wait, ..QueueBounds::default() };
        let admission = full_at(2, bounds);
        let own =
            [admission.sandbox(&tenant(1), SMALL).await.unwrap(), admission.sandbox(&tenant(1), SMALL).await.unwrap()];
        let used = admission.sandbox(&tenant(1), SMALL).await.unwrap_err();
        assert_eq!(used.kind(), ErrorKind::ResourceExhausted);
        let (second, third) = (tenant(2), tenant(3));
        let (full, too_many) = tokio::join!(admission.sandbox(&second, SMALL), admission.sandbox(&third, SMALL));
        for error in [full.unwrap_err(), too_many.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(crate::refusal::retry_after(&error).is_some());
        }
        assert_eq!(admission.waiting(), 0);
        drop(own);
        assert_eq!(admission.state_of(&tenant(1)).1, 0);
    }

    /// Waits until so many requests wait.
    async fn until_waiting(admission: &Admission, count: usize) {
        let all = async {
            while admission.waiting() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("the requests wait");
    }

    /// Promise (Server): A tenant that asks for more than there is blocks others for a bounded time only.
    #[tokio::test]
    async fn a_large_request_does_not_block_others_for_long() {
        const MIB: u64 = 1 << 20;
        let capacity = Capacity { sandboxes: None, memory: Some(cofferdam_contract::ByteSize::from_bytes(10 * MIB)) };
        let bounds = QueueBounds { block: Duration::from_millis(400), ..QueueBounds::default() };
        let admission = Admission::new(Quota::default(), capacity, bounds);
        let serving = tokio::spawn(Arc::clone(&admission).serve_waiting());
        let ask = |number, memory_mib| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.sandbox(&tenant(number), Demand { memory_mib, disk_mib: 0 }).await })
        };
        let held = ask(1, 5).await.unwrap().unwrap();
        let large = ask(2, 10);
        until_waiting(&admission, 1).await;
        let begun = Instant::now();
        let small = tokio::time::timeout(Duration::from_secs(20), ask(3, 1)).await.expect("it passes the large one");
        assert!(begun.elapsed() >= Duration::from_millis(300), "the large one has a claim at first");
        drop((held, small.unwrap().unwrap()));
        drop(large.await.unwrap().unwrap());
        serving.abort();
    }

    /// Promise (Server): A caller that leaves the queue blocks it no more.
    #[tokio::test]
    async fn a_large_request_that_leaves_blocks_no_more() {
        const MIB: u64 = 1 << 20;
        let capacity = Capacity { sandboxes: None, memory: Some(cofferdam_contract::ByteSize::from_bytes(10 * MIB)) };
        let admission = Admission::new(Quota::default(), capacity, QueueBounds::default());
        let _held = admission.sandbox(&tenant(1), Demand { memory_mib: 5, disk_mib: 0 }).await.unwrap();
        let ask = |number, memory_mib| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.sandbox(&tenant(number), Demand { memory_mib, disk_mib: 0 }).await })
        };
        let (large, small) = (ask(2, 10), ask(3, 1));
        until_waiting(&admission, 2).await;
        large.abort();
        let small = tokio::time::timeout(Duration::from_secs(2), small).await.expect("it is admitted at once");
        drop(small.unwrap().unwrap());
    }

    /// Promise (Server): A caller that no longer waits takes no room, at any moment.
    #[tokio::test]
    async fn a_caller_that_leaves_takes_no_room() {
        let admission = full_at(1, QueueBounds::default());
        for round in 0..50 {
            let first = admission.sandbox(&tenant(1), SMALL).await.unwrap();
            let waiting = tokio::spawn({
                let admission = Arc::clone(&admission);
                async move { admission.sandbox(&tenant(2), SMALL).await.map(drop) }
            });
            while admission.waiting() < 1 {
                tokio::task::yield_now().await;
            }
            if round % 2 == 0 {
                drop(first);
                waiting.abort();
            } else {
                waiting.abort();
                drop(first);
            }
            let _ = waiting.await;
            assert_eq!((admission.waiting(), admission.state_of(&tenant(2)).1), (0, 0), "{round}");
        }
    }
}

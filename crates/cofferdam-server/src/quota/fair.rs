//! A weighted fair queue with deadlines.
//!
//! Each tenant has a line of its own, first in, first out. The next request comes from the line with the smallest tag.
//! A line's tag grows by the inverse of the tenant's weight with each request, and a line that was empty starts at the
//! tag that is served now. So tenants share by weight, a tenant gains nothing by asking more, and none starves.
//!
//! A first request that does not fit blocks the others for a while, so that room becomes free for it. Then requests that
//! fit pass it, and after a while it blocks again. A first request that leaves or expires has had its turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cofferdam_contract::TenantId;

/// The growth of a tag for a weight of 1.
const SCALE: u64 = 1 << 20;
/// The requests of one tenant block others for one part of this many.
const BLOCK_PARTS: u32 = 3;
/// The most lines that are tried after a first one that does not fit.
const MAX_TRIED: usize = 256;

/// The position of a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    deadline: Duration,
    item: T,
}

#[derive(Debug)]
struct Line<T> {
    weight: u64,
    /// The tag of the request that is served next, or of the last one if the line is empty.
    tag: u64,
    /// The time since which it blocks others.
    blocks_since: Option<Duration>,
    waiting: VecDeque<Waiting<T>>,
}

/// A weighted fair queue. Times count from any fixed moment.
#[derive(Debug)]
pub struct FairQueue<T> {
    lines: BTreeMap<TenantId, Line<T>>,
    /// The lines with requests, by tag.
    ready: BTreeSet<(u64, TenantId)>,
    /// The deadlines of all requests.
    deadlines: BTreeMap<(Duration, Ticket), TenantId>,
    /// The tag that is served now.
    served: u64,
    tickets: u64,
    /// The longest time without a break that requests of one tenant block others.
    block: Duration,
}

impl<T> FairQueue<T> {
    /// Creates an empty queue in which requests of one tenant block others for `block` at most, then not for twice that.
    pub fn new(block: Duration) -> Self {
        let (lines, ready, deadlines) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { lines, ready, deadlines, served: 0, tickets: 0, block }
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Returns true without requests.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// Returns the number of a tenant's requests.
    pub fn len_of(&self, tenant: &TenantId) -> usize {
        self.lines.get(tenant).map_or(0, |line| line.waiting.len())
    }

    /// Adds a request.
    pub fn push(&mut self, now: Duration, tenant: &TenantId, weight: u32, deadline: Duration, item: T) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (served, period) = (self.served, self.block * BLOCK_PARTS);
        // A line that was empty for long has no advantage. One that emptied just now keeps its debt.
        let has_blocked = |line: &Line<T>| line.blocks_since.is_some_and(|since| now < since + period);
        self.lines.retain(|_, line| !line.waiting.is_empty() || line.tag > served || has_blocked(line));
        let line = self.lines.entry(tenant.clone()).or_insert_with(|| Line {
            weight: 1,
            tag: served,
            blocks_since: None,
            waiting: VecDeque::new(),
        });
        line.weight = u64::from(weight.max(1));
        if line.waiting.is_empty() {
            line.tag = line.tag.max(served) + SCALE / line.weight;
            self.ready.insert((line.tag, tenant.clone()));
        }
        line.waiting.push_back(Waiting { ticket, deadline, item });
        self.deadlines.insert((deadline, ticket), tenant.clone());
        ticket
    }

    /// Removes and returns the next request that `accepts` accepts. The first one blocks the others for a while if it does
    /// not fit, so that smaller ones do not pass it forever.
    pub fn pop(&mut self, now: Duration, mut accepts: impl FnMut(&TenantId, &T) -> bool) -> Option<(TenantId, T)> {
        let mut found = None;
        for (at, (_, tenant)) in self.ready.iter().take(1 + MAX_TRIED).enumerate() {
            let line = self.lines.get_mut(tenant)?;
            if accepts(tenant, &line.waiting.front()?.item) {
                found = Some(tenant.clone());
                break;
            }
            if at == 0 && line.blocks(now, self.block) {
                return None;
            }
        }
        let tenant = found?;
        let next = self.lines.get_mut(&tenant)?.waiting.pop_front()?;
        self.deadlines.remove(&(next.deadline, next.ticket));
        self.end_turn(&tenant);
        Some((tenant, next.item))
    }

    /// Moves a line whose first request is gone behind the others.
    fn end_turn(&mut self, tenant: &TenantId) {
        let Some(line) = self.lines.get_mut(tenant) else { return };
        self.ready.remove(&(line.tag, tenant.clone()));
        // Requests may have passed the line.
        self.served = self.served.max(line.tag);
        if !line.waiting.is_empty() {
            line.tag = self.served + SCALE / line.weight;
            self.ready.insert((line.tag, tenant.clone()));
        }
    }

    /// Removes and returns a request whose deadline has passed.
    pub fn expire(&mut self, now: Duration) -> Option<(TenantId, T)> {
        let (deadline, ticket) = *self.deadlines.first_key_value()?.0;
        if deadline > now { None } else { self.take(deadline, ticket) }
    }

    /// Removes a request whose caller no longer waits.
    pub fn cancel(&mut self, deadline: Duration, ticket: Ticket) -> Option<T> {
        self.take(deadline, ticket).map(|(_, item)| item)
    }

    fn take(&mut self, deadline: Duration, ticket: Ticket) -> Option<(TenantId, T)> {
        let tenant = self.deadlines.remove(&(deadline, ticket))?;
        let line = self.lines.get_mut(&tenant)?;
        let at = line.waiting.iter().position(|waiting| waiting.ticket == ticket)?;
        let taken = line.waiting.remove(at)?;
        let is_first = at == 0 && self.ready.first().is_some_and(|(_, first)| *first == tenant);
        if is_first {
            // The others waited for it. Otherwise a tenant could stay first with requests that never fit.
            self.end_turn(&tenant);
        } else if line.waiting.is_empty() {
            self.ready.remove(&(line.tag, tenant.clone()));
            // It was not served, and costs nothing.
            line.tag = line.tag.saturating_sub(SCALE / line.weight);
        }
        Some((tenant, taken.item))
    }
}

impl<T> Line<T> {
    /// Returns true while a first request that does not fit blocks the others. The time is that of the line, so that a
    /// tenant gains nothing with a new request.
    fn blocks(&mut self, now: Duration, block: Duration) -> bool {
        let since = self.blocks_since.filter(|since| now < *since + block * BLOCK_PARTS).unwrap_or(now);
        self.blocks_since = Some(since);
        now < since + block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FOREVER: Duration = Duration::MAX;
    const NOW: Duration = Duration::ZERO;
    const BLOCK: Duration = Duration::from_secs(5);
    /// The time of a step.
    const STEP: Duration = Duration::from_millis(500);

    fn tenant(number: usize) -> TenantId {
        TenantId::new(format!("t{number}")).unwrap()
    }

    /// Promise (Server): 10,000 queued requests drain in order: each tenant's in the order of arrival, and tenants by
    /// turns.
    #[test]
    fn ten_thousand_requests_drain_in_order() {
        let mut queue = FairQueue::new(BLOCK);
        // The first tenant asks for everything before the others come.
        for number in 0..5000 {
            queue.push(NOW, &tenant(0), 1, FOREVER, (0, number));
        }
        for number in 0..100 {
            for other in 1..=50 {
                queue.push(NOW, &tenant(other), 1, FOREVER, (other, number));
            }
        }
        assert_eq!(queue.len(), 10_000);
        let mut next = vec![0; 51];
        let mut order = Vec::new();
        while let Some((_, (who, number))) = queue.pop(NOW, |_, _| true) {
            assert_eq!(number, next[who], "the requests of one tenant keep their order");
            next[who] += 1;
            order.push(who);
        }
        assert_eq!((order.len(), queue.len()), (10_000, 0));
        // While all wait, each is served once in each turn.
        for turn in order[..51 * 100].chunks(51) {
            let served: BTreeSet<_> = turn.iter().collect();
            assert_eq!(served.len(), 51);
        }
    }

    #[test]
    fn weights_are_shares() {
        let mut queue = FairQueue::new(BLOCK);
        for _ in 0..300 {
            queue.push(NOW, &tenant(1), 1, FOREVER, ());
            queue.push(NOW, &tenant(3), 3, FOREVER, ());
        }
        let served: Vec<_> = (0..200).filter_map(|_| queue.pop(NOW, |_, ()| true)).map(|(who, ())| who).collect();
        let light = served.iter().filter(|who| **who == tenant(1)).count();
        assert!((49..=51).contains(&light), "{light}");
    }

    #[test]
    fn deadlines_pass_and_callers_leave() {
        let mut queue = FairQueue::new(BLOCK);
        let second = Duration::from_secs;
        queue.push(NOW, &tenant(1), 1, second(5), "a");
        let gone = queue.push(NOW, &tenant(1), 1, second(9), "b");
        queue.push(NOW, &tenant(2), 1, second(3), "c");
        assert_eq!(queue.expire(second(2)), None);
        assert_eq!(queue.expire(second(3)), Some((tenant(2), "c")));
        assert_eq!(queue.cancel(second(9), gone), Some("b"));
        assert_eq!(queue.cancel(second(9), gone), None);
        assert_eq!(queue.pop(NOW, |_, _| false), None);
        assert_eq!(queue.pop(NOW, |_, _| true), Some((tenant(1), "a")));
        assert!(queue.is_empty() && queue.pop(NOW, |_, _| true).is_none());
    }

    #[test]
    fn a_first_request_that_leaves_has_had_its_turn() {
        let mut queue = FairQueue::new(BLOCK);
        let first = queue.push(NOW, &tenant(1), 1, FOREVER, "large");
        queue.push(NOW, &tenant(2), 1, FOREVER, "small");
        // The next request of the tenant is there before the first one leaves.
        queue.push(NOW, &tenant(1), 1, FOREVER, "large");
        assert_eq!(queue.pop(NOW, |_, item| *item == "small"), None);
        assert_eq!(queue.cancel(FOREVER, first), Some("large"));
        assert_eq!(queue.pop(NOW, |_, item| *item == "small"), Some((tenant(2), "small")));
    }

    #[test]
    fn a_blocked_request_is_passed_after_a_while_and_blocks_again_later() {
        let mut queue = FairQueue::new(BLOCK);
        queue.push(NOW, &tenant(1), 1, FOREVER, "large");
        for _ in 0..4 {
            queue.push(NOW, &tenant(2), 1, FOREVER, "small");
        }
        let mut pop = |seconds| queue.pop(Duration::from_secs(seconds), |_, item| *item == "small").is_some();
        assert_eq!([0, 4, 5, 14, 15, 19, 20].map(&mut pop), [false, false, true, true, false, false, true]);
    }

    proptest! {
        /// Promise (Server): No tenant starves: a waiting request is served after at most its share of the others'.
        #[test]
        fn no_tenant_starves(
            steps in prop::collection::vec((0usize..6, 1u32..5, 0u8..4), 1..400),
            weights in prop::collection::vec(1u32..8, 6),
        ) {
            let mut queue: FairQueue<(usize, u64)> = FairQueue::new(BLOCK);
            // For each tenant: numbers of the requests that wait, and how often others were served meanwhile.
            let mut waiting: Vec<VecDeque<u64>> = vec![VecDeque::new(); 6];
            let mut others = vec![vec![0u64; 6]; 6];
            let mut numbers = 0;
            let total = |weights: &[u32]| weights.iter().map(|weight| u64::from(*weight)).sum::<u64>();
            for (who, _, action) in steps {
                if action > 0 {
                    numbers += 1;
                    if waiting[who].is_empty() {
                        others[who] = vec![0; 6];
                    }
                    queue.push(NOW, &tenant(who), weights[who], FOREVER, (who, numbers));
                    waiting[who].push_back(numbers);
                } else if let Some((_, (served, number))) = queue.pop(NOW, |_, _| true) {
                    prop_assert_eq!(waiting[served].pop_front(), Some(number));
                    others[served] = vec![0; 6];
                    for tenant in 0..6 {
                        if tenant != served && !waiting[tenant].is_empty() {
                            others[tenant][served] += 1;
                            // Between two of its own turns, another tenant has at most its share, and one more.
                            let share = u64::from(weights[served]).div_ceil(u64::from(weights[tenant])) + 1;
                            prop_assert!(others[tenant][served] <= share, "{} {}", others[tenant][served], share);
                        }
                    }
                }
            }
            prop_assert!(total(&weights) > 0);
            let left: usize = waiting.iter().map(VecDeque::len).sum();
            prop_assert_eq!(queue.len(), left);
            let drained = std::iter::from_fn(|| queue.pop(NOW, |_, _| true)).count();
            prop_assert_eq!(drained, left);
        }

        /// Promise (Server): A request that fits is served in bounded time while another tenant asks again and again for
        /// more than there is, and leaves.
        #[test]
        fn requests_that_never_fit_starve_no_tenant(
            steps in prop::collection::vec((0u8..8, 0usize..4, 1u32..40), 1..400),
        ) {
            let mut queue: FairQueue<Option<u64>> = FairQueue::new(BLOCK);
            let (mut hostile, mut submitted) = (VecDeque::new(), BTreeMap::new());
            let (mut now, mut numbers) = (NOW, 0);
            for (action, who, wait) in steps {
                now += STEP;
                match action {
                    0..3 => {
                        let deadline = now + STEP * wait;
                        hostile.push_back((deadline, queue.push(now, &tenant(9), 1, deadline, None)));
                    }
                    3 => drop(hostile.pop_front().map(|(deadline, ticket)| queue.cancel(deadline, ticket))),
                    4..6 => {
                        numbers += 1;
                        submitted.insert(numbers, now);
                        queue.push(now, &tenant(who), 1, FOREVER, Some(numbers));
                    }
                    _ => {}
                }
                while queue.expire(now).is_some() {}
                while let Some((_, served)) = queue.pop(now, |_, number| number.is_some()) {
                    submitted.remove(&served.unwrap());
                }
                for since in submitted.values() {
                    prop_assert!(now < *since + BLOCK + STEP, "waits since {since:?} at {now:?}");
                }
            }
        }

        /// Promise (Server): A large request is served while other tenants ask for small ones without end, if room
        /// becomes free.
        #[test]
        fn large_requests_are_not_starved_by_small_ones(
            lives in prop::collection::vec(1u32..9, 400),
            asks in prop::collection::vec(1usize..4, 400),
            arrives in 0usize..100,
        ) {
            const ROOM: u64 = 8;
            let mut queue: FairQueue<u64> = FairQueue::new(BLOCK);
            let (mut now, mut held) = (NOW, BTreeMap::new());
            let (mut free, mut count, mut served_at) = (ROOM, 0u64, None);
            for (step, (life, asks)) in lives.iter().zip(&asks).enumerate() {
                now += STEP;
                if step == arrives {
                    queue.push(now, &tenant(9), 1, FOREVER, ROOM);
                }
                for who in 0..*asks {
                    queue.push(now, &tenant(who), 1, FOREVER, 1);
                }
                let later = held.split_off(&(now, 0));
                free += held.into_values().sum::<u64>();
                held = later;
                while let Some((_, size)) = queue.pop(now, |_, size| *size <= free) {
                    free -= size;
                    count += 1;
                    held.insert((now + STEP * *life, count), size);
                    if size == ROOM {
                        served_at = Some(step);
                    }
                }
            }
            // All that runs ends within one time of blocking, and its line is first after one turn of the others.
            let limit = arrives + 3 * usize::try_from(BLOCK.as_millis() / STEP.as_millis()).unwrap();
            prop_assert!(served_at.is_some_and(|step| step <= limit), "{:?} after {}", served_at, arrives);
        }
    }
}

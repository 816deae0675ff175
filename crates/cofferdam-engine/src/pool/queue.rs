//! A fair queue: tenants are served round-robin, and the claims of a tenant in order of arrival. Pure.

use std::collections::{HashMap, VecDeque};

use cofferdam_contract::TenantId;

/// The bound that rejects a further claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The total number of queued claims.
    All(usize),
    /// The number of queued claims of this tenant.
    Tenant(usize),
}

/// A position in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    tenant: TenantId,
    number: u64,
}

/// A bounded queue that serves tenants round-robin. A tenant without queued items joins at the end of the round.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    lines: HashMap<TenantId, VecDeque<(u64, T)>>,
    /// Tenants with queued items, in the order in which they are served.
    round: VecDeque<TenantId>,
    len: usize,
    next_number: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), round: VecDeque::new(), len: 0, next_number: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Returns the number of queued items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks if a further item of this tenant may be queued.
    pub(crate) fn check(&self, tenant: &TenantId, max: usize, max_per_tenant: usize) -> Result<(), Full> {
        let of_tenant = self.lines.get(tenant).map_or(0, VecDeque::len);
        if of_tenant >= max_per_tenant {
            return Err(Full::Tenant(of_tenant));
        }
        if self.len >= max { Err(Full::All(self.len)) } else { Ok(()) }
    }

    /// Adds an item.
    pub(crate) fn push(&mut self, tenant: &TenantId, item: T) -> Ticket {
        let line = self.lines.entry(tenant.clone()).or_default();
        if line.is_empty() {
            self.round.push_back(tenant.clone());
        }
        let number = self.next_number;
        self.next_number += 1;
        line.push_back((number, item));
        self.len += 1;
        Ticket { tenant: tenant.clone(), number }
    }

    /// Returns the item to be served next.
    pub(crate) fn peek(&self) -> Option<&T> {
        let line = self.lines.get(self.round.front()?)?;
        line.front().map(|(_, item)| item)
    }

    /// Removes the item to be served next, and moves its tenant to the end of the round.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let tenant = self.round.pop_front()?;
        let line = self.lines.get_mut(&tenant)?;
        let (_, item) = line.pop_front()?;
        self.len -= 1;
        if line.is_empty() {
            self.lines.remove(&tenant);
        } else {
            self.round.push_back(tenant);
        }
        Some(item)
    }

    /// Removes a cancelled item. Returns `None` if it was already removed.
    pub(crate) fn remove(&mut self, ticket: &Ticket) -> Option<T> {
        let line = self.lines.get_mut(&ticket.tenant)?;
        let index = line.iter().position(|(number, _)| *number == ticket.number)?;
        let (_, item) = line.remove(index)?;
        self.len -= 1;
        if line.is_empty() {
            self.lines.remove(&ticket.tenant);
            self.round.retain(|tenant| *tenant != ticket.tenant);
        }
        Some(item)
    }

    /// Removes and returns all items.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.pop()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenant(number: usize) -> TenantId {
        TenantId::new(format!("t{number}")).unwrap()
    }

    #[test]
    fn tenants_take_turns_and_one_is_first_come_first_served() {
        let mut queue = FairQueue::default();
        for item in ["a1", "a2", "a3"] {
            queue.push(&tenant(0), item);
        }
        queue.push(&tenant(1), "b1");
        queue.push(&tenant(1), "b2");
        queue.push(&tenant(2), "c1");
        assert_eq!(queue.drain(), ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    #[test]
    fn both_bounds_hold() {
        let mut queue = FairQueue::default();
        queue.push(&tenant(0), ());
        queue.push(&tenant(0), ());
        queue.push(&tenant(1), ());
        assert_eq!(queue.check(&tenant(0), 10, 2), Err(Full::Tenant(2)));
        assert_eq!(queue.check(&tenant(1), 3, 2), Err(Full::All(3)));
        assert_eq!(queue.check(&tenant(1), 4, 2), Ok(()));
    }

    proptest! {
        /// Compares pushes, pops and removals with plain lists. No item is lost, no item overtakes another one of its
        /// tenant, and no tenant is served twice while another one waits all the time.
        ///
        /// Promise (Warm sandboxes and pools): A full pool serves tenants in turn, and each tenant in the order of its
        /// calls.
        #[test]
        fn turns_are_fair(steps in prop::collection::vec((0usize..4, 0usize..5), 0..200)) {
            let mut queue = FairQueue::default();
            let mut lines: Vec<Vec<(u64, Ticket)>> = vec![Vec::new(); 4];
            // Counts services of the second tenant since the first one started to wait, or was served itself.
            let mut passed = [[0; 4]; 4];
            for (serial, (which, action)) in (0u64..).zip(steps) {
                match action {
                    0..=2 => {
                        if lines[which].is_empty() {
                            passed[which] = [0; 4];
                        }
                        let ticket = queue.push(&tenant(which), (which, serial));
                        lines[which].push((serial, ticket));
                    }
                    3 => {
                        prop_assert_eq!(queue.peek().is_none(), lines.iter().all(Vec::is_empty));
                        let Some((who, serial)) = queue.pop() else { continue };
                        prop_assert_eq!(lines[who].remove(0).0, serial);
                        for other in (0..4).filter(|other| *other != who && !lines[*other].is_empty()) {
                            passed[other][who] += 1;
                            prop_assert!(passed[other][who] <= 1, "{} twice before {}", who, other);
                        }
                        passed[who] = [0; 4];
                    }
                    _ => {
                        if let Some((serial, ticket)) = lines[which].pop() {
                            prop_assert_eq!(queue.remove(&ticket), Some((which, serial)));
                            prop_assert_eq!(queue.remove(&ticket), None);
                        }
                    }
                }
                prop_assert_eq!(queue.len(), lines.iter().map(Vec::len).sum::<usize>());
            }
        }
    }
}

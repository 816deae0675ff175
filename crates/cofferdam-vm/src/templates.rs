//! Template snapshots, one for each kind of VM, from which prepared VMs are restored.
//!
//! Each is taken of a VM that was booted only for this, in which no request ever ran. A cache keeps few of them, and
//! drops those that are not used for some time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cofferdam_contract::{Access, Result};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::plan::Plan;
use crate::snapshot::VmSnapshot;

/// Maximum number of template snapshots, one for each kind that was requested.
pub(crate) const MAX_TEMPLATES: usize = 4;
/// Time after which an unused template snapshot is dropped.
pub(crate) const TEMPLATE_IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// All properties in which VMs differ before anything ran in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub plan: Plan,
    pub writable: bool,
}

impl Kind {
    pub(crate) fn new(plan: Plan, access: Access) -> Self {
        Self { plan, writable: access == Access::ReadWrite }
    }
}

type Slot = Arc<OnceCell<VmSnapshot>>;
type Slots = HashMap<Kind, (Slot, Instant)>;

/// The cache of template snapshots.
#[derive(Debug)]
pub(crate) struct Templates {
    slots: Arc<Mutex<Slots>>,
    max: usize,
    idle: Duration,
}

impl Templates {
    pub(crate) fn new(max: usize, idle: Duration) -> Self {
        Self { slots: Arc::default(), max, idle }
    }

    /// Returns the snapshot of a kind, and creates it if it is missing. Concurrent callers wait for the same one.
    pub(crate) async fn get(&self, kind: Kind, make: impl Future<Output = Result<VmSnapshot>>) -> Result<VmSnapshot> {
        let (slot, first) = self.slot(kind, Instant::now());
        if first {
            // Spawned before the first wait: a caller that stops waiting leaves no slot that is never dropped.
            tokio::spawn(sweep(Arc::downgrade(&self.slots), self.idle));
        }
        slot.get_or_try_init(|| make).await.cloned()
    }

    /// Returns the kind's slot, and true if the cache was empty before.
    fn slot(&self, kind: Kind, now: Instant) -> (Slot, bool) {
        let mut slots = self.slots.lock();
        let first = slots.is_empty();
        let slot = Arc::clone(&slots.get(&kind).map(|(slot, _)| Arc::clone(slot)).unwrap_or_default());
        slots.insert(kind, (Arc::clone(&slot), now));
        while slots.len() > self.max {
            let oldest = slots.iter().filter(|(other, _)| **other != kind).min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(kind, _)| *kind) else { break };
            slots.remove(&oldest);
        }
        (slot, first)
    }
}

/// Drops unused snapshots, until the cache is empty or dropped itself.
async fn sweep(slots: Weak<Mutex<Slots>>, idle: Duration) {
    loop {
        tokio::time::sleep(idle).await;
        let Some(slots) = slots.upgrade() else { return };
        let mut slots = slots.lock();
        slots.retain(|_, (_, used)| used.elapsed() < idle);
        if slots.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::Spec;

    use super::*;
    use crate::config::VmConfig;

    fn kind(processors: u32) -> Kind {
        let plan = Plan::of(&Spec::default(), &VmConfig { processors, ..VmConfig::new("/x") }).unwrap();
        Kind::new(plan, Access::ReadWrite)
    }

    #[test]
    fn oldest_template_is_dropped_first() {
        let templates = Templates::new(2, Duration::from_secs(9));
        let now = Instant::now();
        let (one, first) = templates.slot(kind(1), now);
        assert!(first);
        let (two, first) = templates.slot(kind(2), now + Duration::from_secs(1));
        assert!(!first && !Arc::ptr_eq(&one, &two));
        assert!(Arc::ptr_eq(&templates.slot(kind(1), now + Duration::from_secs(2)).0, &one));
        templates.slot(kind(3), now + Duration::from_secs(3));
        assert_eq!(templates.slots.lock().len(), 2);
        assert!(Arc::ptr_eq(&templates.slot(kind(1), now + Duration::from_secs(4)).0, &one));
        assert!(!Arc::ptr_eq(&templates.slot(kind(2), now + Duration::from_secs(5)).0, &two));
    }

    #[tokio::test]
    async fn unused_template_is_dropped() {
        let templates = Templates::new(2, Duration::from_millis(20));
        let (slot, _) = templates.slot(kind(1), Instant::now());
        let dropped = Arc::downgrade(&slot);
        drop(slot);
        tokio::time::timeout(Duration::from_secs(60), sweep(Arc::downgrade(&templates.slots), templates.idle))
            .await
            .unwrap();
        assert!(dropped.upgrade().is_none());
    }

    #[tokio::test]
    async fn template_of_a_cancelled_request_is_dropped() {
        let templates = Templates::new(2, Duration::from_millis(20));
        let first = templates.get(kind(1), std::future::pending());
        assert!(tokio::time::timeout(Duration::from_millis(1), first).await.is_err());
        let begun = Instant::now();
        while !templates.slots.lock().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never swept");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

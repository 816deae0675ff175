//! Snapshots that are kept ready, one for each kind of machine: warm machines come from them.
//!
//! One is taken of a machine that was booted for nothing else, in which no request ever ran. Few are kept, and none for long
//! that nobody asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cofferdam_contract::{Access, Result};
use tokio::sync::OnceCell;

use crate::plan::Plan;
use crate::snapshot::VmSnapshot;

/// All in which machines differ before anything ran in them.
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

type Cell = Arc<OnceCell<VmSnapshot>>;
type Kept = HashMap<Kind, (Cell, Instant)>;

/// What is kept.
#[derive(Debug)]
pub(crate) struct Ready {
    kept: Arc<Mutex<Kept>>,
    most: usize,
    idle: Duration,
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ready {
    pub(crate) fn new(most: usize, idle: Duration) -> Self {
        Self { kept: Arc::default(), most, idle }
    }

    /// The snapshot for a kind: what is kept, or what is made now and kept then. Whoever asks meanwhile waits for the same.
    pub(crate) async fn get(&self, kind: Kind, make: impl Future<Output = Result<VmSnapshot>>) -> Result<VmSnapshot> {
        let (cell, begun) = self.cell(kind, Instant::now());
        if begun {
            // Before anybody waits: whoever stops waiting leaves nothing that is never swept.
            tokio::spawn(sweep(Arc::downgrade(&self.kept), self.idle));
        }
        cell.get_or_try_init(|| make).await.cloned()
    }

    /// The kind's cell, and whether nothing was kept before.
    fn cell(&self, kind: Kind, now: Instant) -> (Cell, bool) {
        let mut kept = lock(&self.kept);
        let begun = kept.is_empty();
        let cell = Arc::clone(&kept.get(&kind).map(|(cell, _)| Arc::clone(cell)).unwrap_or_default());
        kept.insert(kind, (Arc::clone(&cell), now));
        while kept.len() > self.most.max(1) {
            let oldest = kept.iter().filter(|(other, _)| **other != kind).min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(kind, _)| *kind) else { break };
            kept.remove(&oldest);
        }
        (cell, begun)
    }
}

/// Drops what nobody asked for, until nothing is kept or nobody is left to ask.
async fn sweep(kept: Weak<Mutex<Kept>>, idle: Duration) {
    loop {
        tokio::time::sleep(idle).await;
        let Some(kept) = kept.upgrade() else { return };
        let mut kept = lock(&kept);
        kept.retain(|_, (_, used)| used.elapsed() < idle);
        if kept.is_empty() {
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
    fn few_are_kept_and_the_oldest_goes_first() {
        let ready = Ready::new(2, Duration::from_secs(9));
        let now = Instant::now();
        let (one, begun) = ready.cell(kind(1), now);
        assert!(begun);
        let (two, begun) = ready.cell(kind(2), now + Duration::from_secs(1));
        assert!(!begun && !Arc::ptr_eq(&one, &two));
        assert!(Arc::ptr_eq(&ready.cell(kind(1), now + Duration::from_secs(2)).0, &one));
        ready.cell(kind(3), now + Duration::from_secs(3));
        assert_eq!(lock(&ready.kept).len(), 2);
        assert!(Arc::ptr_eq(&ready.cell(kind(1), now + Duration::from_secs(4)).0, &one));
        assert!(!Arc::ptr_eq(&ready.cell(kind(2), now + Duration::from_secs(5)).0, &two));
    }

    #[tokio::test]
    async fn what_nobody_asks_for_is_dropped() {
        let ready = Ready::new(2, Duration::from_millis(20));
        let (cell, _) = ready.cell(kind(1), Instant::now());
        let dropped = Arc::downgrade(&cell);
        drop(cell);
        tokio::time::timeout(Duration::from_secs(60), sweep(Arc::downgrade(&ready.kept), ready.idle)).await.unwrap();
        assert!(dropped.upgrade().is_none());
    }

    #[tokio::test]
    async fn what_nobody_waited_for_is_dropped_too() {
        let ready = Ready::new(2, Duration::from_millis(20));
        let first = ready.get(kind(1), std::future::pending());
        assert!(tokio::time::timeout(Duration::from_millis(1), first).await.is_err());
        let begun = Instant::now();
        while !lock(&ready.kept).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never swept");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

//! The connections of all sandboxes of this process: they share its descriptors fairly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::sync::oneshot;

/// The maximum of connections of one sandbox. Further ones are closed: no limit counts the memory of a connection that
/// waits to be accepted.
pub const MAX_CONNECTIONS: usize = 64;
/// Each connection takes two descriptors, and all together at most half of those of the process.
const DESCRIPTORS_OF_CONNECTION: u64 = 2;
/// The maximum of connections of this process if it has very many descriptors, or no limit.
const MAX_OF_PROCESS: u64 = 1 << 16;

/// The connections of this process.
static PROCESS: LazyLock<Arc<Pool>> = LazyLock::new(|| {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = descriptors / 2 / DESCRIPTORS_OF_CONNECTION;
    Pool::new(usize::try_from(connections.clamp(1, MAX_OF_PROCESS)).unwrap_or(1))
});

/// The connections of several sandboxes.
#[derive(Debug)]
struct Pool {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// The connections of each sandbox that has any, from the oldest to the newest.
    sandboxes: BTreeMap<u64, BTreeMap<u64, oneshot::Sender<()>>>,
    /// The last number of a sandbox or connection.
    last: u64,
}

impl Pool {
    fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }
}

impl Open {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The connections of one sandbox in a pool.
#[derive(Debug)]
pub struct Share {
    pool: Arc<Pool>,
    sandbox: u64,
}

impl Share {
    /// Returns the share of a new sandbox in the connections of this process.
    pub fn of_process() -> Self {
        Self::of(&PROCESS)
    }

    fn of(pool: &Arc<Pool>) -> Self {
        let sandbox = pool.open.lock().next();
        Self { pool: Arc::clone(pool), sandbox }
    }

    /// Returns the permit of one more connection, or `None` if there are too many. If the process has too many, the newest
    /// connection of the sandbox with the most ends instead, unless this sandbox would then have as many.
    pub fn open(&self) -> Option<Permit> {
        let mut open = self.pool.open.lock();
        let own = open.sandboxes.get(&self.sandbox).map_or(0, BTreeMap::len);
        if own >= MAX_CONNECTIONS {
            return None;
        }
        let mut ended = None;
        if open.sandboxes.values().map(BTreeMap::len).sum::<usize>() >= self.pool.max {
            let largest = open.sandboxes.values_mut().max_by_key(|connections| connections.len())?;
            if largest.len() <= own + 1 {
                return None;
            }
            ended = largest.pop_last();
        }
        let connection = open.next();
        let (sender, revoked) = oneshot::channel();
        open.sandboxes.entry(self.sandbox).or_default().insert(connection, sender);
        drop(open);
        // Its task wakes up.
        drop(ended);
        let (pool, displaced) = (Arc::clone(&self.pool), Arc::default());
        Some(Permit { pool, sandbox: self.sandbox, connection, revoked, displaced })
    }
}

/// A place among the connections. Dropping it frees the place.
#[derive(Debug)]
pub struct Permit {
    pool: Arc<Pool>,
    sandbox: u64,
    connection: u64,
    revoked: oneshot::Receiver<()>,
    displaced: Arc<AtomicBool>,
}

impl Permit {
    /// Returns a flag for the work of the connection. It is true when the work is dropped for another sandbox.
    pub fn displaced(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.displaced)
    }

    /// Runs the work of the connection. Returns false if another sandbox took the place before the end.
    pub async fn hold(mut self, work: impl Future<Output = ()>) -> bool {
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => true,
            // Its sender is dropped.
            _ = &mut self.revoked => {
                // The work is dropped after that, at the end of this function.
                self.displaced.store(true, Ordering::Relaxed);
                false
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.pool.open.lock();
        if let Some(connections) = open.sandboxes.get_mut(&self.sandbox) {
            connections.remove(&self.connection);
            if connections.is_empty() {
                open.sandboxes.remove(&self.sandbox);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens connections until there are too many.
    fn fill(share: &Share) -> Vec<Permit> {
        std::iter::from_fn(|| share.open()).take(1000).collect()
    }

    fn live(permits: &mut [Permit]) -> usize {
        let is_live = |permit: &mut Permit| permit.revoked.try_recv() == Err(oneshot::error::TryRecvError::Empty);
        permits.iter_mut().map(|permit| usize::from(is_live(permit))).sum()
    }

    /// Promise (Network): A hundred sandboxes of one process share its connections fairly, whatever the first ones took.
    #[test]
    fn a_hundred_sandboxes_share_connections_fairly() {
        let pool = Pool::new(256);
        let shares: Vec<Share> = (0..100).map(|_| Share::of(&pool)).collect();
        let mut held: Vec<Vec<Permit>> = shares[..4].iter().map(fill).collect();
        assert!(held.iter_mut().all(|permits| live(permits) == MAX_CONNECTIONS), "few sandboxes may have them all");
        held.extend(shares[4..].iter().map(fill));
        let live: Vec<usize> = held.iter_mut().map(|permits| live(permits)).collect();
        assert!(live.iter().all(|count| (2..=3).contains(count)), "{live:?}");
        assert_eq!(live.iter().sum::<usize>(), 256);
        // None gains by trying again, and none is cut again.
        assert!(shares.iter().all(|share| share.open().is_none()));
        drop(held);
        assert_eq!(fill(&shares[99]).len(), MAX_CONNECTIONS);
        assert!(pool.open.lock().sandboxes.is_empty(), "nothing is left");
    }

    #[tokio::test]
    async fn the_newest_connection_of_the_largest_sandbox_ends() {
        let pool = Pool::new(3);
        let (first, second) = (Share::of(&pool), Share::of(&pool));
        let (one, two, three) = (first.open().unwrap(), first.open().unwrap(), first.open().unwrap());
        let other = second.open().unwrap();
        assert!(!three.hold(std::future::pending()).await, "its place was taken");
        assert!(two.hold(std::future::ready(())).await && one.hold(std::future::ready(())).await);
        drop(other);
        assert!(pool.open.lock().sandboxes.is_empty());
    }
}

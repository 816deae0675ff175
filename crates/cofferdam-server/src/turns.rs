//! Permits of tenants for work with files: few at once, and one for each tenant, so that no tenant keeps others waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::refusal::exhausted;

/// The most turns of all tenants at once.
const MAX_TURNS: usize = 4;
/// The most work of one tenant that waits for a turn.
const MAX_WAITING: usize = 64;
/// The interval after which a client may retry.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The turns of all tenants.
#[derive(Debug)]
pub struct Turns {
    all: Semaphore,
    /// The turn of each tenant that has one or waits for it.
    tenants: Mutex<BTreeMap<TenantId, Arc<Semaphore>>>,
}

/// A turn, which ends when this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    _own: Option<OwnedSemaphorePermit>,
    _all: Option<SemaphorePermit<'a>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(MAX_TURNS)
    }
}

impl Turns {
    /// Creates turns, of which `max` are taken at once.
    pub fn new(max: usize) -> Self {
        Self { all: Semaphore::new(max), tenants: Mutex::default() }
    }

    /// Waits for the turn of a tenant. A tenant has one turn at a time.
    ///
    /// # Errors
    /// - `ResourceExhausted` if 64 others of the tenant wait.
    pub async fn take(&self, tenant: &TenantId) -> Result<Turn<'_>> {
        let own = {
            let mut tenants = self.tenants.lock();
            tenants.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(tenants.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // The map and this call have one reference each.
        if Arc::strong_count(&own).saturating_sub(2) > MAX_WAITING {
            let message = "too many requests of the tenant wait for work with files";
            return Err(exhausted("wait", message, RETRY_INTERVAL));
        }
        // The semaphores are never closed.
        let own = own.acquire_owned().await.ok();
        Ok(Turn { _own: own, _all: self.all.acquire().await.ok() })
    }
}

/// Runs work with files on a thread that may block.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Internal, "use files", "the work ended early").with_source(error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Server): The requests of a tenant that wait for work with files are bounded, and others do not wait for
    /// them.
    #[tokio::test]
    async fn a_tenant_waits_for_itself_only() {
        let turns = Arc::new(Turns::new(2));
        let tenant = |name: &str| TenantId::new(name).unwrap();
        let first = turns.take(&tenant("a")).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..MAX_WAITING {
            let (turns, tenant) = (Arc::clone(&turns), tenant("a"));
            waiting.push(tokio::spawn(async move { turns.take(&tenant).await.map(drop) }));
            tokio::task::yield_now().await;
        }
        let refused = turns.take(&tenant("a")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        let other = tokio::time::timeout(Duration::from_secs(5), turns.take(&tenant("b"))).await;
        drop(other.expect("another tenant has its turn").unwrap());
        drop(first);
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
        assert!(turns.take(&tenant("a")).await.is_ok());
    }
}

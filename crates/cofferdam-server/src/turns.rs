//! Turns of tenants for work with files: few at once, and one of each tenant, so that others get theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The most turns of all tenants at once.
const MAX_TURNS: usize = 4;

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
        Self { all: Semaphore::new(MAX_TURNS), tenants: Mutex::default() }
    }
}

impl Turns {
    /// Waits for the turn of a tenant. A tenant has one turn at once, however much waits.
    pub async fn take(&self, tenant: &TenantId) -> Turn<'_> {
        let own = {
            let mut tenants = self.tenants.lock();
            tenants.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(tenants.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // The semaphores are never closed.
        let own = own.acquire_owned().await.ok();
        Turn { _own: own, _all: self.all.acquire().await.ok() }
    }
}

/// Runs work with files on a thread that may block.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Internal, "use files", "the work ended early").with_source(error))
    })
}

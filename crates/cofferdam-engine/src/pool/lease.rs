//! A lease on one sandbox of a pool. A sandbox is leased once and destroyed afterwards.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use cofferdam_contract::{Result, Sandbox};

use super::shared::{Shared, Slot};
use crate::{ClaimKind, error};

/// A leased sandbox of a pool. Dropping the lease closes the sandbox in the background. Its slot becomes free after the
/// close.
pub struct Lease {
    shared: Arc<Shared>,
    number: u64,
    sandbox: Arc<dyn Sandbox>,
    kind: ClaimKind,
}

impl Lease {
    pub(super) fn new(slot: Slot, sandbox: Arc<dyn Sandbox>, kind: ClaimKind) -> Self {
        let shared = Arc::clone(&slot.shared);
        let number = shared.lease(slot, Arc::clone(&sandbox));
        Self { shared, number, sandbox, kind }
    }

    /// Returns the sandbox. It is closed when the lease ends, even if other references to it exist.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Returns the way in which the claim got the sandbox.
    pub fn kind(&self) -> ClaimKind {
        self.kind
    }

    /// Closes the sandbox. When this returns, nothing of it is left and its slot is free.
    pub async fn close(self) -> Result<()> {
        match self.shared.end_lease(self.number) {
            Some(closing) => closing.await.unwrap_or_else(|_| Err(error::task_lost("close"))),
            // A shutdown has already ended the lease.
            None => self.sandbox.close().await,
        }
    }
}

impl Deref for Lease {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.shared.end_lease(self.number));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("sandbox", &self.sandbox).field("kind", &self.kind).finish_non_exhaustive()
    }
}

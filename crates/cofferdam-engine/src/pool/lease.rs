//! The right to use one sandbox of a pool until it is given back. It is given back once and used by nobody after.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use cofferdam_contract::{Result, Sandbox};

use super::shared::{Place, Shared};
use crate::{ClaimKind, error};

/// A sandbox of a pool, in use. Dropping it closes the sandbox in the background; its place in the pool is free when
/// that is done, and not before.
pub struct Lease {
    shared: Arc<Shared>,
    number: u64,
    sandbox: Arc<dyn Sandbox>,
    kind: ClaimKind,
}

impl Lease {
    pub(super) fn new(place: Place, sandbox: Arc<dyn Sandbox>, kind: ClaimKind) -> Self {
        let shared = Arc::clone(&place.shared);
        let number = shared.lease(place, Arc::clone(&sandbox));
        Self { shared, number, sandbox, kind }
    }

    /// The sandbox. It is closed when the lease ends, whoever still holds it.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// How it was come by.
    pub fn kind(&self) -> ClaimKind {
        self.kind
    }

    /// Closes the sandbox; nothing of it is left, and its place is free, when this returns.
    pub async fn close(self) -> Result<()> {
        match self.shared.end_lease(self.number) {
            Some(closing) => closing.await.unwrap_or_else(|_| Err(error::given_up("close"))),
            // A shutdown has ended the lease already.
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

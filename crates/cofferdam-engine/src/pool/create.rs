//! Creation of the sandbox for a waiting caller, in a separate task: a caller that gives up leaves no partial sandbox
//! behind.

use std::sync::Arc;

use cofferdam_contract::{Error, PreparedSandbox, Result, Retry, Sandbox, Snapshot, Spec};
use tokio::time::timeout;

use super::lease::Lease;
use super::shared::{Shared, Slot, Waiter};
use crate::{ClaimKind, error};

/// The operation that creates the requested sandbox.
#[derive(Debug)]
pub(super) enum Operation {
    /// Claim an idle sandbox, or create one.
    Claim,
    /// Restore a snapshot.
    Restore(Snapshot),
    /// Fork this sandbox.
    Fork(Arc<dyn Sandbox>),
}

impl Operation {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Restore(_) => "restore",
            Self::Fork(_) => "fork",
        }
    }
}

/// The slot or sandbox that was granted.
#[derive(Debug)]
pub(super) enum Grant {
    /// An idle prepared sandbox.
    Warm(Box<dyn PreparedSandbox>),
    /// A free slot for a new sandbox.
    Cold(ClaimKind),
}

/// Creates the sandbox and sends the result to the caller.
pub(super) async fn create(slot: Slot, waiter: Waiter, grant: Grant) {
    let Waiter { spec, operation, since, reply } = waiter;
    let shared = Arc::clone(&slot.shared);
    let name = operation.name();
    let limit = shared.config.make_timeout;
    let created = timeout(limit, sandbox(&shared, spec, operation, grant)).await;
    let answer = match created.unwrap_or_else(|_| Err(error::create_timed_out(name, limit))) {
        Ok((sandbox, kind)) => {
            shared.lock().tally.claimed(kind, since.elapsed());
            Ok(Lease::new(slot, sandbox, kind))
        }
        Err(error) => {
            shared.lock().tally.failures += 1;
            // The slot is freed before the answer, so that a retry of the caller finds it.
            drop(slot);
            Err(error)
        }
    };
    // If the caller has given up, the lease is dropped here, which closes the sandbox.
    drop(reply.send(answer));
}

async fn sandbox(
    shared: &Shared,
    spec: Spec,
    operation: Operation,
    grant: Grant,
) -> Result<(Arc<dyn Sandbox>, ClaimKind)> {
    let backend = &shared.backend;
    match (operation, grant) {
        (Operation::Claim, Grant::Warm(warm)) => match warm.claim(spec.clone()).await {
            Ok(sandbox) => Ok((sandbox, ClaimKind::Warm)),
            Err(error) if replaceable(&error) => Ok((backend.create(spec).await?, ClaimKind::ColdReplaced)),
            Err(error) => Err(error),
        },
        (Operation::Claim, Grant::Cold(kind)) => Ok((backend.create(spec).await?, kind)),
        (Operation::Restore(snapshot), _) => Ok((backend.restore(snapshot, spec).await?, ClaimKind::Copy)),
        (Operation::Fork(sandbox), _) => Ok((sandbox.fork().await?, ClaimKind::Copy)),
    }
}

/// Returns true if a create may succeed after this failure of a claim. A request that a create would reject too is not
/// tried twice.
fn replaceable(error: &Error) -> bool {
    error.retry() == Retry::MayHelp
}

//! Makes the sandbox that somebody waits for, in a task of its own: who gives up does not leave one behind half made.

use std::sync::Arc;

use cofferdam_contract::{Error, Result, Retry, Sandbox, Snapshot, Spec, Warm};
use tokio::time::timeout;

use super::lease::Lease;
use super::shared::{Place, Shared, Waiter};
use crate::{ClaimKind, error};

/// How somebody wants their sandbox made.
#[derive(Debug)]
pub(super) enum Make {
    /// Claimed, or created.
    Claim,
    /// Restored.
    Restore(Snapshot),
    /// Copied from this one.
    Fork(Arc<dyn Sandbox>),
}

impl Make {
    pub(super) fn operation(&self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Restore(_) => "restore",
            Self::Fork(_) => "fork",
        }
    }
}

/// What somebody was given.
#[derive(Debug)]
pub(super) enum Grant {
    /// One that waited.
    Warm(Box<dyn Warm>),
    /// A place.
    Cold(ClaimKind),
}

/// Makes the sandbox and answers.
pub(super) async fn make(place: Place, waiter: Waiter, grant: Grant) {
    let Waiter { spec, make, since, reply } = waiter;
    let shared = Arc::clone(&place.shared);
    let operation = make.operation();
    let limit = shared.config.make_timeout;
    let made = timeout(limit, sandbox(&shared, spec, make, grant)).await;
    let answer = match made.unwrap_or_else(|_| Err(error::made_too_slowly(operation, limit))) {
        Ok((sandbox, kind)) => {
            shared.lock().tally.claimed(kind, since.elapsed());
            Ok(Lease::new(place, sandbox, kind))
        }
        Err(error) => {
            shared.lock().tally.failures += 1;
            // Free before the answer, so that who tries again finds it.
            drop(place);
            Err(error)
        }
    };
    // Who gave up meanwhile drops the lease, which closes the sandbox.
    drop(reply.send(answer));
}

async fn sandbox(shared: &Shared, spec: Spec, make: Make, grant: Grant) -> Result<(Arc<dyn Sandbox>, ClaimKind)> {
    let backend = &shared.backend;
    match (make, grant) {
        (Make::Claim, Grant::Warm(warm)) => match warm.claim(spec.clone()).await {
            Ok(sandbox) => Ok((sandbox, ClaimKind::Warm)),
            Err(error) if replaceable(&error) => Ok((backend.create(spec).await?, ClaimKind::ColdReplaced)),
            Err(error) => Err(error),
        },
        (Make::Claim, Grant::Cold(kind)) => Ok((backend.create(spec).await?, kind)),
        (Make::Restore(snapshot), _) => Ok((backend.restore(snapshot, spec).await?, ClaimKind::Copy)),
        (Make::Fork(sandbox), _) => Ok((sandbox.fork().await?, ClaimKind::Copy)),
    }
}

/// Whether a create may succeed where a claim failed. What a create would refuse too is not asked for twice.
fn replaceable(error: &Error) -> bool {
    error.retry() == Retry::MayHelp
}

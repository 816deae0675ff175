//! The errors of a pool, with their remedies.

use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind};

const CLAIM: &str = "claim";

/// Creates the error for a claim on a pool that is shut down.
pub(crate) fn shut_down() -> Error {
    Error::new(ErrorKind::Closed, CLAIM, "the pool is shut down").with_remedy("create a new pool")
}

/// Creates the error for a claim while the queue is full.
pub(crate) fn queue_full(waiting: usize) -> Error {
    Error::new(
        ErrorKind::ResourceExhausted,
        CLAIM,
        format!("the queue is full: {waiting} claims are waiting for a sandbox"),
    )
    .with_remedy("try again later, or raise the pool's max or max_waiting")
}

/// Creates the error for a claim while the tenant's part of the queue is full.
pub(crate) fn tenant_queue_full(tenant: &str, waiting: usize) -> Error {
    let message = format!("the tenant's queue is full: {waiting} claims are waiting for a sandbox");
    Error::new(ErrorKind::ResourceExhausted, CLAIM, message)
        .with_context("tenant", tenant)
        .with_remedy("try again when some of them have ended, or raise the pool's max or max_waiting_per_tenant")
}

/// Creates the error for a claim that timed out in the queue.
pub(crate) fn claim_timed_out(limit: Duration, max: usize) -> Error {
    let message = format!("no sandbox became free within {limit:?}: all {max} are in use");
    Error::new(ErrorKind::ResourceExhausted, CLAIM, message)
        .with_remedy("close sandboxes that are no longer used, or raise the pool's max or claim_timeout")
}

/// Creates the error for a backend that exceeded the timeout.
pub(crate) fn create_timed_out(operation: &'static str, limit: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, operation, format!("the backend created no sandbox within {limit:?}"))
        .with_remedy("reduce the load of the host, or raise the pool's claim_timeout and make_timeout")
}

/// Creates the error for a task that ended without an answer.
pub(crate) fn task_lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the pool's runtime was shut down, or the backend panicked")
}

/// Creates the error for sandboxes that a shutdown could not close.
pub(crate) fn close_timed_out(left: usize) -> Error {
    Error::new(ErrorKind::Unavailable, "shutdown", format!("{left} sandboxes did not end in time"))
        .with_remedy("check for processes of these sandboxes that do not exit")
}

/// Creates the error for closes that failed during a shutdown.
pub(crate) fn closes_failed(count: u64) -> Error {
    Error::new(ErrorKind::Io, "shutdown", format!("{count} sandboxes failed to close"))
}

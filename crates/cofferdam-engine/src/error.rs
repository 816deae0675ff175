//! What a pool and a session refuse, with what to do about it.

use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind};

const CLAIM: &str = "claim";

/// The pool is shut down.
pub(crate) fn shut_down() -> Error {
    Error::new(ErrorKind::Closed, CLAIM, "the pool is shut down").with_remedy("make a new pool")
}

/// The queue is full.
pub(crate) fn queue_full(waiting: usize) -> Error {
    Error::new(ErrorKind::ResourceExhausted, CLAIM, format!("{waiting} claims wait for a sandbox already"))
        .with_remedy("try again later, or raise the pool's max or max_waiting")
}

/// One tenant's share of the queue is full.
pub(crate) fn tenant_queue_full(tenant: &str, waiting: usize) -> Error {
    let message = format!("{waiting} claims of this tenant wait for a sandbox already");
    Error::new(ErrorKind::ResourceExhausted, CLAIM, message)
        .with_context("tenant", tenant)
        .with_remedy("try again when some have ended, or raise the pool's max or max_waiting_per_tenant")
}

/// No place became free in time.
pub(crate) fn waited_too_long(limit: Duration, max: usize) -> Error {
    let message = format!("all {max} places were taken for {limit:?}");
    Error::new(ErrorKind::ResourceExhausted, CLAIM, message)
        .with_remedy("close sandboxes that are no longer used, or raise the pool's max or claim_timeout")
}

/// The backend did not answer in time.
pub(crate) fn made_too_slowly(operation: &'static str, limit: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, operation, format!("the backend made no sandbox within {limit:?}"))
        .with_remedy("see what keeps the host busy, or raise the pool's claim_timeout and make_timeout")
}

/// Whoever made the sandbox went away without an answer.
pub(crate) fn given_up(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the pool's event loop ended, or the backend panicked")
}

/// Sandboxes that a shutdown could not end.
pub(crate) fn not_ended(left: usize) -> Error {
    Error::new(ErrorKind::Unavailable, "shutdown", format!("{left} sandboxes did not end in time"))
        .with_remedy("look for what keeps their processes from dying")
}

/// Closes that failed during a shutdown.
pub(crate) fn failed_to_close(count: u64) -> Error {
    Error::new(ErrorKind::Io, "shutdown", format!("closing {count} sandboxes failed"))
}

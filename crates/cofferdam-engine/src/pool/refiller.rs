//! The background task of a pool. It refills, replaces old sandboxes, destroys surplus ones and removes dead ones.
//! `slots` decides when and how many.

use std::sync::Arc;

use cofferdam_contract::{ErrorKind, PreparedSandbox, Result};
use tokio::time::{sleep_until, timeout};

use super::shared::{Shared, Slot};
use super::slots::SlotState;
use crate::error;

/// Runs until the pool is drained.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        let now = shared.now();
        let (unused, fill, again) = {
            let mut state = shared.lock();
            if state.slots.is_draining() {
                return;
            }
            let dead = state.slots.reap(|warm| warm.is_alive());
            state.tally.died += dead.len() as u64;
            let expired = state.slots.expire(now);
            state.tally.expired += expired.len() as u64;
            let fill = state.slots.refill(now);
            (dead.into_iter().chain(expired), fill, state.slots.next_poll(now))
        };
        shared.close_unused(unused);
        for _ in 0..fill {
            let slot = Slot::new(&shared, SlotState::Filling);
            shared.spawn(fill_one(slot));
        }
        match again {
            Some(again) => {
                tokio::select! {
                    () = shared.changed.notified() => {}
                    () = sleep_until(shared.moment(again)) => {}
                }
            }
            None => shared.changed.notified().await,
        }
    }
}

/// Prepares one sandbox.
async fn fill_one(slot: Slot) {
    let shared = Arc::clone(&slot.shared);
    let limit = shared.config.make_timeout;
    let prepared = timeout(limit, shared.backend.prepare(shared.template.clone())).await;
    let unused = enter(&shared, prepared.unwrap_or_else(|_| Err(error::create_timed_out("warm", limit))));
    slot.forget();
    shared.close_unused(unused);
    shared.settle();
}

/// Records the result in the slots. Returns a sandbox that is not needed.
fn enter(shared: &Shared, prepared: Result<Box<dyn PreparedSandbox>>) -> Option<Box<dyn PreparedSandbox>> {
    match prepared {
        Ok(warm) => {
            let now = shared.now();
            let mut state = shared.lock();
            state.tally.refills += 1;
            state.tally.refill_error = None;
            return state.slots.filled(warm, now);
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => shared.lock().slots.fill_unsupported(),
        Err(error) => shared.fill_failed(&error),
    }
    None
}

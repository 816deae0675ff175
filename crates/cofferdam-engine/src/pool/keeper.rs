//! The pool's one background task: refills, replaces what is old, destroys what is too much, and finds the dead. When
//! and how much is decided in `ledger`.

use std::sync::Arc;

use cofferdam_contract::{ErrorKind, Result, Warm};
use tokio::time::{sleep_until, timeout};

use super::ledger::Standing;
use super::shared::{Place, Shared};
use crate::error;

/// Works until the pool is drained.
pub(super) async fn keep(shared: Arc<Shared>) {
    loop {
        let now = shared.now();
        let (unused, fill, again) = {
            let mut state = shared.lock();
            if state.ledger.is_draining() {
                return;
            }
            let dead = state.ledger.reap(|warm| warm.is_alive());
            state.tally.died += dead.len() as u64;
            let expired = state.ledger.expire(now);
            state.tally.expired += expired.len() as u64;
            let fill = state.ledger.refill(now);
            (dead.into_iter().chain(expired), fill, state.ledger.look_again(now))
        };
        shared.close_unused(unused);
        for _ in 0..fill {
            let place = Place::new(&shared, Standing::Filling);
            shared.spawn(fill_one(place));
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

/// Makes one ahead.
async fn fill_one(place: Place) {
    let shared = Arc::clone(&place.shared);
    let limit = shared.config.make_timeout;
    let made = timeout(limit, shared.backend.warm(shared.template.clone())).await;
    let unused = enter(&shared, made.unwrap_or_else(|_| Err(error::made_too_slowly("warm", limit))));
    place.forget();
    shared.close_unused(unused);
    shared.settle();
}

/// Enters what came of it into the ledger; gives back what nobody wants.
fn enter(shared: &Shared, made: Result<Box<dyn Warm>>) -> Option<Box<dyn Warm>> {
    match made {
        Ok(warm) => {
            let now = shared.now();
            let mut state = shared.lock();
            state.tally.refills += 1;
            state.tally.refill_error = None;
            return state.ledger.filled(warm, now);
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => shared.lock().ledger.fill_unsupported(),
        Err(error) => shared.fill_failed(&error),
    }
    None
}

//! The background task that refills prepared interpreters and closes old and dead ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_interpreter::{InterpreterConfig, WarmInterpreter};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Shared, close};

type Prepared = std::result::Result<(Id, Result<WarmInterpreter>), JoinError>;

/// Runs until the pool drains. Then interpreters that are still being created are dropped, which closes their
/// sandboxes.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut making: JoinSet<Result<WarmInterpreter>> = JoinSet::new();
    let mut kinds: HashMap<Id, usize> = HashMap::new();
    while !shared.draining.load(Ordering::Acquire) {
        let again = tick(&shared, &mut making, &mut kinds);
        tokio::select! {
            () = shared.changed.notified() => {}
            () = sleep_until(again) => {}
            Some(created) = making.join_next_with_id() => enter(&shared, &mut kinds, created),
        }
    }
    making.shutdown().await;
}

/// Removes unusable interpreters and starts missing ones. Returns the time of the next call.
fn tick(
    shared: &Arc<Shared>,
    making: &mut JoinSet<Result<WarmInterpreter>>,
    kinds: &mut HashMap<Id, usize>,
) -> Instant {
    let now = shared.now();
    let mut unused = Vec::new();
    let mut again = now + std::time::Duration::from_secs(60);
    for (number, kind) in shared.lock().iter_mut().enumerate() {
        let (dead, old) = kind.slots.remove_unusable(now, WarmInterpreter::is_alive);
        kind.tally.died += dead.len() as u64;
        kind.tally.expired += old.len() as u64;
        unused.extend(dead.into_iter().chain(old));
        for _ in 0..kind.slots.begin(now) {
            let id = making.spawn(make(Arc::clone(shared), kind.interpreter.clone())).id();
            kinds.insert(id, number);
        }
        again = again.min(kind.slots.next_poll(now));
    }
    for waiting in unused {
        // The backend counts closes that fail.
        tokio::spawn(async move { drop(close(waiting).await) });
    }
    shared.start + again
}

async fn make(shared: Arc<Shared>, config: InterpreterConfig) -> Result<WarmInterpreter> {
    let making = async {
        let sandbox = shared.backend.create(shared.inside.clone()).await?;
        match WarmInterpreter::prepare(Arc::clone(&sandbox), config).await {
            Ok(waiting) => Ok(waiting),
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    };
    let limit = shared.make_timeout;
    timeout(limit, making).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, "warm", format!("no interpreter was ready within {limit:?}")))
    })
}

fn enter(shared: &Arc<Shared>, kinds: &mut HashMap<Id, usize>, created: Prepared) {
    let (id, created) = match created {
        Ok(created) => created,
        Err(panicked) => {
            let error = Error::new(ErrorKind::Internal, "warm", "the task that prepares an interpreter panicked");
            (panicked.id(), Err(error.with_source(panicked)))
        }
    };
    let Some(number) = kinds.remove(&id) else { return };
    let now = shared.now();
    let mut all = shared.lock();
    let kind = &mut all[number];
    let unused = match created {
        Ok(waiting) => {
            kind.tally.created += 1;
            kind.tally.last_error = None;
            kind.slots.filled(waiting, now)
        }
        Err(error) => {
            kind.tally.failures += 1;
            kind.tally.last_error = Some(error.to_string());
            kind.slots.failed(now, fastrand::f64());
            None
        }
    };
    drop(all);
    if let Some(waiting) = unused {
        tokio::spawn(async move { drop(close(waiting).await) });
    }
}

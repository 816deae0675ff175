//! Zygotes, one for each tenant and spec, made on first use.
//!
//! ```text
//! start(spec, request) --> the zygote for exactly this spec: a fork --> exec handle
//!                      \-> none: made, in the place of the one unused for longest where all are taken
//! keeper --> ends those that are idle, used up or dead
//! ```
//!
//! Forks of one zygote share a sandbox, so that a zygote is for one spec, word for word, tenant and labels included: what
//! is compared is the whole of it, in `ledger`, which is pure. Nothing falls back: a request that no fork can serve is
//! refused, and whoever sent it may start it cold.

mod config;
mod ledger;
mod metrics;
mod shared;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_contract::{
    Backend, Completed, Error, ErrorKind, ExecHandle, ExecRequest, Posture, Result, SandboxId, Spec, collect,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub use config::ZygotesConfig;
pub use metrics::ZygoteMetrics;

use crate::error;
use ledger::Ledger;
use shared::{Shared, State, keep};

/// How often a shutdown looks whether everything has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A request that a fork runs.
#[derive(Debug)]
pub struct Forked {
    /// Its output, input and end.
    pub handle: ExecHandle,
    /// The sandbox that it shares with the other forks of its zygote.
    pub sandbox: SandboxId,
    /// What was measured of that sandbox. Its bounds on processes and CPU time are those of all forks together.
    pub posture: Posture,
}

/// Zygotes of many tenants. Dropping it lets what runs come to its end.
#[derive(Debug)]
pub struct Zygotes {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Zygotes {
    /// Begins to keep zygotes in sandboxes of `backend`. Must be called in a tokio runtime with time enabled.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration that contradicts itself, or outside of a runtime; `Unsupported` for an
    /// interpreter that cannot be forked.
    pub fn new(backend: Arc<dyn Backend>, config: ZygotesConfig) -> Result<Self> {
        config.validate()?;
        let runtime = Handle::try_current()
            .map_err(|missing| Error::invalid("configure", "zygotes need a tokio runtime").with_source(missing))?;
        let ledger = Ledger::new(config.max, config.idle_timeout);
        let state = Mutex::new(State { ledger, making: HashMap::new(), tally: ZygoteMetrics::default() });
        let (start, stop) = (Instant::now(), Notify::new());
        let shared = Arc::new(Shared { backend, config, runtime, start, state, stop });
        let keeper = shared.runtime.spawn(keep(Arc::clone(&shared)));
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// Runs `request` in a fork of the zygote for `spec`, which is made if there is none.
    ///
    /// # Behavior
    /// - The zygote was made for exactly this spec: no request of one tenant meets one of another.
    /// - Answers `Unsupported` for what [`cofferdam_interpreter::ZygoteConfig::accepts`] does not accept, and for what the
    ///   backend or the sandbox does not offer; the caller may start it cold.
    /// - Answers `ResourceExhausted` where all places are taken by zygotes in use, or as many of this one's forks run as may.
    /// - Fails as [`Backend::create`] and [`cofferdam_interpreter::Zygote::warm`] do, when one has to be made.
    pub async fn start(&self, spec: &Spec, request: ExecRequest) -> Result<Forked> {
        let outcome = self.shared.start(spec, request).await;
        let mut state = self.shared.lock();
        let counter = match &outcome {
            Ok(_) => &mut state.tally.served,
            Err(error) if error.kind() == ErrorKind::Unsupported => &mut state.tally.unsupported,
            Err(error) if error.kind() == ErrorKind::ResourceExhausted => &mut state.tally.refused,
            Err(_) => &mut state.tally.failed,
        };
        *counter += 1;
        outcome
    }

    /// Runs a request to its end and collects its output, without loss up to its `max_output`.
    pub async fn run(&self, spec: &Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let Forked { handle, posture, .. } = self.start(spec, request).await?;
        Ok((collect(handle).await?, posture))
    }

    /// How they stand, and what happened so far.
    pub fn metrics(&self) -> ZygoteMetrics {
        let state = self.shared.lock();
        let [live, making, closing] = state.ledger.counts();
        let running = state.ledger.live().map(|zygote| zygote.running()).sum();
        ZygoteMetrics { live, making, closing, running, ..state.tally.clone() }
    }

    /// Takes no more requests, lets those that run go on for `patience`, and then ends all. Idempotent; nothing is left when
    /// it returns.
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        self.shared.lock().ledger.drain();
        self.shared.stop.notify_one();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // One that panicked has ended, too.
            let _ = keeper.await;
        }
        let until = Instant::now() + patience;
        while Instant::now() < until && self.metrics().running > 0 {
            tokio::time::sleep(LOOK).await;
        }
        let all = self.shared.lock().ledger.take_all();
        let mut outcome = Ok(());
        for (id, zygote) in all {
            outcome = outcome.and(zygote.close().await);
            self.shared.lock().ledger.gone(id);
        }
        // What is being made or closed has bounds of its own.
        let left = async {
            while self.shared.lock().ledger.counts() != [0; 3] {
                tokio::time::sleep(LOOK).await;
            }
        };
        let limit = self.shared.config.make_timeout;
        let in_time = timeout(limit, left).await;
        outcome.and(in_time.map_err(|_| error::not_ended(self.shared.lock().ledger.counts().iter().sum())))
    }
}

impl Drop for Zygotes {
    fn drop(&mut self) {
        let all = {
            let mut state = self.shared.lock();
            state.ledger.drain();
            state.ledger.take_all()
        };
        self.shared.stop.notify_one();
        drop(all);
    }
}

//! Interpreters that wait warm, some of each kind, each in a sandbox of its own.
//!
//! ```text
//! keeper --makes one at a time--> waiting --take(spec, request)--> Taken --start--> handle, sandbox
//!                                    '--too old, dead, shut down--> closed
//! ```
//!
//! What a request may not have changed is compared in `fits`, when to make the next one is decided in `shelf`; both are
//! pure. Where nothing fits the answer is `None`, and the caller starts cold. Nothing is used twice.

mod config;
pub(crate) mod fits;
mod keeper;
mod shelf;
mod taken;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Backend, Error, ExecRequest, Result, Sandbox, Spec};
use cofferdam_interpreter::{InterpreterConfig, WaitingInterpreter};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use config::{InterpreterTimes, InterpretersConfig, KeptInterpreter};
pub use taken::Taken;

use shelf::Shelf;

/// How the interpreters of one kind stand, and what happened to them so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InterpreterMetrics {
    /// The kind's name.
    pub name: String,
    /// Those that wait.
    pub waiting: usize,
    /// Those being made.
    pub making: usize,
    /// Those that were taken for a request.
    pub taken: u64,
    /// Requests that one could have served, when none waited.
    pub missed: u64,
    /// Those that were made.
    pub made: u64,
    /// Those that could not be made.
    pub failures: u64,
    /// Why the last one could not be made; `None` once one was made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Those that grew too old unused.
    pub expired: u64,
    /// Those that died while they waited.
    pub died: u64,
}

/// Interpreters of several kinds that wait warm. Dropping it ends those that wait.
#[derive(Debug)]
pub struct Interpreters {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// One kind.
#[derive(Debug)]
struct Kind {
    interpreter: InterpreterConfig,
    shelf: Shelf<WaitingInterpreter>,
    tally: InterpreterMetrics,
}

#[derive(Debug)]
struct Shared {
    backend: Arc<dyn Backend>,
    template: Spec,
    /// The template with what an interpreter needs besides the code.
    inside: Spec,
    make_timeout: Duration,
    start: Instant,
    kinds: Mutex<Vec<Kind>>,
    changed: Notify,
    draining: std::sync::atomic::AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Kind>> {
        // Shelves change by their own whole steps, so that a panic elsewhere leaves them consistent.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Interpreters {
    /// Begins to keep interpreters for requests with specs like `template`, in sandboxes of `backend`, which is best one
    /// that bounds how many are alive, such as [`crate::PooledBackend`].
    ///
    /// Must be called in a tokio runtime with time enabled.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration that contradicts itself, or outside of a runtime.
    pub fn new(backend: Arc<dyn Backend>, template: Spec, config: InterpretersConfig) -> Result<Self> {
        config.validate()?;
        template.validate()?;
        let runtime = Handle::try_current().map_err(|missing| {
            Error::invalid("configure", "waiting interpreters need a tokio runtime").with_source(missing)
        })?;
        let inside = fits::sandbox_spec(&template)?;
        let times = config.times;
        let kinds = config.kept.into_iter().map(|kept| Kind {
            interpreter: kept.interpreter,
            shelf: Shelf::new(kept.ready, times.clone()),
            tally: InterpreterMetrics { name: kept.name, ..InterpreterMetrics::default() },
        });
        let shared = Arc::new(Shared {
            backend,
            template,
            inside,
            make_timeout: times.make_timeout,
            start: Instant::now(),
            kinds: Mutex::new(kinds.collect()),
            changed: Notify::new(),
            draining: std::sync::atomic::AtomicBool::new(false),
        });
        let keeper = runtime.spawn(keeper::keep(Arc::clone(&shared)));
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// Takes an interpreter that will run `request` under `spec` as a start from cold would; `None` where there is none,
    /// or where any word of either could not be kept.
    pub fn take(&self, spec: &Spec, request: &ExecRequest) -> Option<Taken> {
        if !fits::fits(&self.shared.template, spec) || spec.validate().is_err() {
            return None;
        }
        let request = fits::with_time(spec, request).ok()?;
        let ends = std::time::Instant::now() + request.timeout()?;
        let interpreter = {
            let mut kinds = self.shared.lock();
            let kind = kinds.iter_mut().find(|kind| kind.interpreter.accepts(&request).is_ok())?;
            let taken = kind.shelf.take(self.shared.now(), |one| one.is_alive() && ends < one.expires());
            *(if taken.is_some() { &mut kind.tally.taken } else { &mut kind.tally.missed }) += 1;
            taken
        };
        self.shared.changed.notify_one();
        Some(Taken { interpreter: interpreter?, spec: spec.clone(), request })
    }

    /// How each kind stands, and what happened so far.
    pub fn metrics(&self) -> Vec<InterpreterMetrics> {
        let kinds = self.shared.lock();
        let one = |kind: &Kind| InterpreterMetrics {
            waiting: kind.shelf.waiting(),
            making: kind.shelf.making(),
            ..kind.tally.clone()
        };
        kinds.iter().map(one).collect()
    }

    /// Ends those that wait and those being made, and makes no more. Idempotent; what was taken is not touched.
    pub async fn shutdown(&self) -> Result<()> {
        let idle = self.drain();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // One that panicked has ended, too.
            let _ = keeper.await;
        }
        let mut outcome = Ok(());
        for waiting in idle {
            outcome = outcome.and(close(waiting).await);
        }
        outcome
    }

    fn drain(&self) -> Vec<WaitingInterpreter> {
        self.shared.draining.store(true, std::sync::atomic::Ordering::Release);
        let idle = self.shared.lock().iter_mut().flat_map(|kind| kind.shelf.drain()).collect();
        self.shared.changed.notify_one();
        idle
    }
}

impl Drop for Interpreters {
    fn drop(&mut self) {
        drop(self.drain());
    }
}

/// Ends one that nobody took.
async fn close(waiting: WaitingInterpreter) -> Result<()> {
    let sandbox: Arc<dyn Sandbox> = Arc::clone(waiting.sandbox());
    drop(waiting);
    sandbox.close().await
}

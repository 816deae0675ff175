//! Prepared interpreters, several of each kind, each in a sandbox of its own.
//!
//! ```text
//! refiller --creates one at a time--> idle --take(spec, request)--> ClaimedInterpreter --start--> handle, sandbox
//!                                       '--too old, dead, shut down--> closed
//! ```
//!
//! The modules `compatibility` (of a request) and `slots` (time of the next refill) are pure. If no interpreter is
//! compatible, the result is `None` and the caller performs a cold start. An interpreter serves one request only.

mod claimed;
pub(crate) mod compatibility;
mod config;
mod refiller;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Error, ExecRequest, Result, Sandbox, Spec};
use cofferdam_interpreter::{InterpreterConfig, WarmInterpreter};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use claimed::ClaimedInterpreter;
pub use config::{InterpreterTimes, InterpretersConfig, PreparedInterpreter};

use slots::Slots;

/// The current state of the interpreters of one kind, and their counters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InterpreterMetrics {
    /// The kind's name.
    pub name: String,
    /// Number of idle interpreters.
    pub waiting: usize,
    /// Number of idle interpreters that refills aim at.
    pub target: usize,
    /// Number of interpreters being created.
    pub making: usize,
    /// Number of interpreters taken for a request.
    pub taken: u64,
    /// Number of requests that found no idle interpreter of the right kind.
    pub missed: u64,
    /// Number of interpreters created.
    #[serde(rename = "made")]
    pub created: u64,
    /// Number of failed creations.
    pub failures: u64,
    /// The error of the last creation; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Number of idle interpreters that became too old.
    pub expired: u64,
    /// Number of idle interpreters that died.
    pub died: u64,
}

/// A pool of prepared interpreters of several kinds. Dropping it closes the idle ones.
#[derive(Debug)]
pub struct Interpreters {
    shared: Arc<Shared>,
    refiller: Mutex<Option<JoinHandle<()>>>,
}

/// The interpreters of one kind.
#[derive(Debug)]
struct Kind {
    interpreter: InterpreterConfig,
    slots: Slots<WarmInterpreter>,
    tally: InterpreterMetrics,
}

#[derive(Debug)]
struct Shared {
    backend: Arc<dyn Backend>,
    template: Spec,
    /// The template, with the extra resources that an interpreter needs.
    inside: Spec,
    make_timeout: Duration,
    start: Instant,
    kinds: Mutex<Vec<Kind>>,
    changed: Notify,
    draining: std::sync::atomic::AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Kind>> {
        // Slots change only in complete steps, so that a panic elsewhere leaves them consistent.
        self.kinds.lock()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Interpreters {
    /// Creates a pool of interpreters for requests with specs like `template`. Their sandboxes come from `backend`,
    /// which should bound the number of live sandboxes, as [`crate::PooledBackend`] does.
    ///
    /// Must be called in a tokio runtime with time enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid configuration or template, or outside of a runtime.
    pub fn new(backend: Arc<dyn Backend>, template: Spec, config: InterpretersConfig) -> Result<Self> {
        config.validate()?;
        template.validate()?;
        let runtime = Handle::try_current().map_err(|missing| {
            Error::invalid("configure", "prepared interpreters need a tokio runtime").with_source(missing)
        })?;
        let inside = compatibility::sandbox_spec(&template)?;
        let times = config.times;
        let kinds = config.prepared.into_iter().map(|prepared| Kind {
            interpreter: prepared.interpreter,
            slots: Slots::new(prepared.ready, times.clone()),
            tally: InterpreterMetrics { name: prepared.name, ..InterpreterMetrics::default() },
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
        let refiller = runtime.spawn(refiller::run(Arc::clone(&shared)));
        Ok(Self { shared, refiller: Mutex::new(Some(refiller)) })
    }

    /// Takes an interpreter that runs `request` under `spec` with the same result as a cold start. Returns `None` if no
    /// interpreter is idle or compatible.
    pub fn take(&self, spec: &Spec, request: &ExecRequest) -> Option<ClaimedInterpreter> {
        if !compatibility::is_compatible(&self.shared.template, spec) || spec.validate().is_err() {
            return None;
        }
        let request = compatibility::with_time(spec, request).ok()?;
        let ends = std::time::Instant::now() + request.timeout()?;
        let interpreter = {
            let mut kinds = self.shared.lock();
            let kind = kinds.iter_mut().find(|kind| kind.interpreter.accepts(&request).is_ok())?;
            let taken = kind.slots.take(self.shared.now(), |one| one.is_alive() && ends < one.expires());
            *(if taken.is_some() { &mut kind.tally.taken } else { &mut kind.tally.missed }) += 1;
            taken
        };
        self.shared.changed.notify_one();
        Some(ClaimedInterpreter { interpreter: interpreter?, spec: spec.clone(), request })
    }

    /// Returns the current state and counters of each kind.
    pub fn metrics(&self) -> Vec<InterpreterMetrics> {
        let kinds = self.shared.lock();
        let one = |kind: &Kind| InterpreterMetrics {
            waiting: kind.slots.waiting(),
            target: kind.slots.target(),
            making: kind.slots.making(),
            ..kind.tally.clone()
        };
        kinds.iter().map(one).collect()
    }

    /// Closes idle interpreters and those being created, and creates no more. Does not affect interpreters that were
    /// taken. Idempotent.
    pub async fn shutdown(&self) -> Result<()> {
        let idle = self.drain();
        let refiller = self.refiller.lock().take();
        if let Some(refiller) = refiller {
            // A task that panicked has ended too.
            let _ = refiller.await;
        }
        let mut outcome = Ok(());
        for waiting in idle {
            outcome = outcome.and(close(waiting).await);
        }
        outcome
    }

    fn drain(&self) -> Vec<WarmInterpreter> {
        self.shared.draining.store(true, std::sync::atomic::Ordering::Release);
        let idle = self.shared.lock().iter_mut().flat_map(|kind| kind.slots.drain()).collect();
        self.shared.changed.notify_one();
        idle
    }
}

impl Drop for Interpreters {
    fn drop(&mut self) {
        drop(self.drain());
    }
}

/// Closes an interpreter that was not taken.
async fn close(waiting: WarmInterpreter) -> Result<()> {
    let sandbox: Arc<dyn Sandbox> = Arc::clone(waiting.sandbox());
    drop(waiting);
    sandbox.close().await
}

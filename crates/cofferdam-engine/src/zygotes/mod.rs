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

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_contract::{
    Backend, Completed, Error, ErrorKind, ExecHandle, ExecRequest, Posture, Result, Sandbox, SandboxId, Spec, collect,
};
use cofferdam_interpreter::Zygote;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub use config::ZygotesConfig;
pub use metrics::ZygoteMetrics;

use crate::error;
use crate::interpreters::fits::with_time;
use ledger::{Answer, Health, Id, Ledger};

/// How often a request asks again, when the zygote that it was given is used up by others meanwhile.
const TRIES: usize = 4;
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

type Outcome = Option<Result<()>>;

#[derive(Debug)]
struct Shared {
    backend: Arc<dyn Backend>,
    config: ZygotesConfig,
    runtime: Handle,
    start: Instant,
    state: Mutex<State>,
    stop: Notify,
}

#[derive(Debug)]
struct State {
    ledger: Ledger<Arc<Zygote>>,
    making: HashMap<Id, watch::Receiver<Outcome>>,
    tally: ZygoteMetrics,
}

fn health(zygote: &Arc<Zygote>) -> Health {
    Health { open: zygote.is_open(), running: zygote.running() }
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
    /// - Fails as [`Backend::create`] and [`Zygote::warm`] do, when one has to be made.
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The ledger changes by its own whole steps, so that a panic elsewhere leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn start(self: &Arc<Self>, spec: &Spec, request: ExecRequest) -> Result<Forked> {
        spec.validate()?;
        request.validate()?;
        self.config.zygote.accepts(&request)?;
        let request = with_time(spec, &request)?;
        for _ in 0..TRIES {
            let (starting, zygote) = self.find(spec).await?;
            let outcome = zygote.start(request.clone()).await;
            drop(starting);
            match outcome {
                Ok(handle) => {
                    let sandbox = zygote.sandbox();
                    return Ok(Forked { handle, sandbox: sandbox.id().clone(), posture: sandbox.posture().clone() });
                }
                // It was used up or died before it was given anything: another one has to be made.
                Err(error) if error.operation() == "fork" && error.kind() == ErrorKind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        Err(error::zygotes_used_up())
    }

    /// Finds the zygote for a spec, or sees to it that there is one.
    async fn find(self: &Arc<Self>, spec: &Spec) -> Result<(Starting, Arc<Zygote>)> {
        let until = Instant::now() + self.config.make_timeout;
        loop {
            let (answer, made) = {
                let mut state = self.lock();
                let answer = state.ledger.ask(spec, self.now(), health);
                let id = match answer {
                    Answer::Make(id) => Some(self.make(&mut state, id, spec)),
                    Answer::Wait(id) => state.making.get(&id).cloned(),
                    _ => None,
                };
                (answer, id)
            };
            match answer {
                Answer::Use(id, zygote) => {
                    let starting = Starting { shared: Arc::clone(self), id };
                    // The ledger has compared the specs; this is the wall between tenants, and is looked at twice.
                    if zygote.sandbox().spec().tenant() != spec.tenant() {
                        return Err(Error::new(ErrorKind::Internal, "start", "a zygote of another tenant was found"));
                    }
                    return Ok((starting, zygote));
                }
                Answer::Make(_) | Answer::Wait(_) => wait(made, until).await?,
                Answer::Close(id, zygote) => {
                    self.lock().tally.evicted += 1;
                    self.close(id, zygote).await;
                }
                Answer::Full => return Err(error::zygotes_full(self.config.max)),
                Answer::Draining => return Err(Error::closed("start")),
            }
        }
    }

    /// Makes a zygote in a task of its own: who gives up waiting leaves nothing half made.
    fn make(self: &Arc<Self>, state: &mut State, id: Id, spec: &Spec) -> watch::Receiver<Outcome> {
        let (tell, made) = watch::channel(None);
        state.making.insert(id, made.clone());
        let (shared, spec) = (Arc::clone(self), spec.clone());
        self.runtime.spawn(async move {
            let limit = shared.config.make_timeout;
            let outcome = timeout(limit, warm(&*shared.backend, &shared.config, &spec)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(error::made_too_slowly("warm", limit)));
            tell.send_replace(Some(shared.enter(id, outcome).await));
        });
        made
    }

    async fn enter(self: &Arc<Self>, id: Id, outcome: Result<Zygote>) -> Result<()> {
        let unwanted = {
            let mut state = self.lock();
            state.making.remove(&id);
            match outcome {
                Ok(zygote) => {
                    state.tally.made += 1;
                    state.tally.last_error = None;
                    state.ledger.made(id, Arc::new(zygote), self.now())
                }
                Err(error) => {
                    state.tally.failures += 1;
                    state.tally.last_error = Some(error.to_string());
                    state.ledger.gone(id);
                    return Err(error);
                }
            }
        };
        if let Some(zygote) = unwanted {
            self.close(id, zygote).await;
        }
        Ok(())
    }

    /// Closes one, whose place is free after that. In a task of its own, as making is.
    async fn close(self: &Arc<Self>, id: Id, zygote: Arc<Zygote>) {
        let shared = Arc::clone(self);
        let closing = self.runtime.spawn(async move {
            // The backend counts a close that fails.
            let _ = zygote.close().await;
            shared.lock().ledger.gone(id);
        });
        let _ = closing.await;
    }
}

/// A request that is being started: its zygote is not closed meanwhile.
#[derive(Debug)]
struct Starting {
    shared: Arc<Shared>,
    id: Id,
}

impl Drop for Starting {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.lock().ledger.started(self.id, now);
    }
}

/// Waits until one is made, or could not be.
async fn wait(made: Option<watch::Receiver<Outcome>>, until: Instant) -> Result<()> {
    // One that is not known any more has just been made, or has failed.
    let Some(mut made) = made else { return Ok(()) };
    match tokio::time::timeout_at(until, made.wait_for(Option::is_some)).await {
        Ok(Ok(outcome)) => outcome.clone().unwrap_or(Ok(())),
        Ok(Err(_)) => Err(error::given_up("warm")),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, "warm", "no zygote was made in time")),
    }
}

async fn warm(backend: &dyn Backend, config: &ZygotesConfig, spec: &Spec) -> Result<Zygote> {
    let (inside, zygote) = config.inside(spec)?;
    let sandbox: Arc<dyn Sandbox> = backend.create(inside).await?;
    match Zygote::warm(Arc::clone(&sandbox), zygote).await {
        Ok(zygote) => Ok(zygote),
        Err(error) => {
            sandbox.close().await?;
            Err(error)
        }
    }
}

/// Ends what nobody uses any more, until there is a shutdown.
async fn keep(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.stop.notified() => return,
            () = tokio::time::sleep(shared.config.check_every) => {}
        }
        let out = shared.lock().ledger.sort_out(shared.now(), health);
        shared.lock().tally.ended += out.len() as u64;
        for (id, zygote) in out {
            shared.close(id, zygote).await;
        }
    }
}

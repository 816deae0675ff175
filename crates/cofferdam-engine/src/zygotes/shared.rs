//! How a zygote is found or made for a request, and ended. What to do is the ledger's decision; this carries it out, each
//! making and each closing in a task of its own. The lock is never held over an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Backend, Error, ErrorKind, ExecRequest, Result, Sandbox, Spec};
use cofferdam_interpreter::Zygote;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::ledger::{Answer, Health, Id, Ledger};
use super::{Forked, ZygoteMetrics, ZygotesConfig};
use crate::error;
use crate::interpreters::fits::with_time;

/// How often a request asks again, when the zygote that it was given is used up by others meanwhile.
const TRIES: usize = 4;

/// How a making ended, once it has.
pub(super) type Outcome = Option<Result<()>>;

/// What the keeper and all requests have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) config: ZygotesConfig,
    pub(super) runtime: Handle,
    pub(super) start: Instant,
    pub(super) state: Mutex<State>,
    pub(super) stop: Notify,
}

/// What changes, under one lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ledger: Ledger<Arc<Zygote>>,
    pub(super) making: HashMap<Id, watch::Receiver<Outcome>>,
    pub(super) tally: ZygoteMetrics,
}

fn health(zygote: &Arc<Zygote>) -> Health {
    Health { open: zygote.is_open(), running: zygote.running() }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The ledger changes by its own whole steps, so that a panic elsewhere leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) async fn start(self: &Arc<Self>, spec: &Spec, request: ExecRequest) -> Result<Forked> {
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
        Err(error) => Err(error.with_failed_close(sandbox.close().await)),
    }
}

/// Ends what nobody uses any more, until there is a shutdown.
pub(super) async fn keep(shared: Arc<Shared>) {
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

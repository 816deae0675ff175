//! What all clients of one server share: the backend, the sandboxes, the bounds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_code::{Executor, Origin, Place, Sessions};
use cofferdam_contract::{Backend, Error, ErrorKind, Result, Sandbox, Spec};
use tokio::sync::oneshot;

use crate::calls::shells;
use crate::config::McpConfig;
use crate::handler::Handler;
use crate::http::Client;
use crate::store::{Account, Frozen, InUse, Store, part_of_client};

/// A server: makes sandboxes of one backend for its clients, and closes them all in the end.
#[derive(Debug, Clone)]
pub struct Server(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: McpConfig,
    pub(crate) store: Arc<Store>,
    pub(crate) executor: Executor,
    /// Interpreters that live between calls.
    pub(crate) interpreters: Sessions,
    /// Where all sandboxes come from.
    pub(crate) place: Place,
    calls: Calls,
    sessions: AtomicU64,
}

/// What a new sandbox is made of.
pub(crate) enum Source {
    /// Nothing but a spec.
    Spec(Box<Spec>),
    /// Another sandbox's state.
    State(State),
}

/// What a sandbox goes on from.
pub(crate) enum State {
    /// A snapshot, with the limits of a spec.
    Snapshot(Box<Frozen>, Box<Spec>),
    /// Another sandbox, as it is.
    Fork(InUse),
}

impl Server {
    /// A server for the sandboxes of `backend`. Must be called in a tokio runtime with time enabled.
    pub fn new(backend: Arc<dyn Backend>, config: McpConfig) -> Result<Self> {
        config.validate()?;
        let store = Store::new(config.bounds.clone());
        let calls = Calls::default();
        let executor = Executor::new(config.code.clone())?;
        let place = Place::of(&*backend);
        let sessions = AtomicU64::new(0);
        let interpreters = Sessions::new(executor.clone());
        Ok(Self(Arc::new(Inner { backend, config, store, executor, interpreters, place, calls, sessions })))
    }

    /// What answers one client, whose sandboxes are closed when it is dropped.
    pub fn session(&self) -> Handler {
        let handler = self.stateless();
        handler.begin_session();
        handler
    }

    /// What answers requests that belong to no session, until one says that it begins one.
    pub fn stateless(&self) -> Handler {
        Handler::new(Arc::clone(&self.0))
    }

    pub(crate) fn config(&self) -> &McpConfig {
        &self.0.config
    }

    /// Closes every sandbox, and waits until nothing is left.
    ///
    /// # Errors
    /// If something is left after `patience`.
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        match self.0.store.shutdown(patience).await {
            0 => Ok(()),
            left => Err(Error::new(
                ErrorKind::Internal,
                "shutdown",
                format!("{left} sandboxes or snapshots are not closed after {patience:?}"),
            )),
        }
    }
}

impl Inner {
    /// The owner of a session that begins now.
    pub fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether a shell is among the languages that may run.
    pub fn runs_shells(&self) -> bool {
        shells(&self.executor.config().languages).next().is_some()
    }

    /// A place among the calls that may run at once.
    pub fn enter_call(&self, client: Option<Client>) -> Result<InCall<'_>> {
        let most = self.config.bounds.calls;
        let mut counts = self.calls.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.get(&client).copied().unwrap_or_default();
        let full = |whose: &str, most: usize| {
            Error::new(
                ErrorKind::ResourceExhausted,
                "call",
                format!("{most} calls {whose} run at once, and no more may"),
            )
            .with_remedy("call again when one of them has ended")
        };
        if client.is_some() && own >= part_of_client(most) {
            return Err(full("of this address", part_of_client(most)));
        }
        if counts.values().sum::<usize>() >= most {
            return Err(full("of this server", most));
        }
        *counts.entry(client).or_default() += 1;
        Ok(InCall { calls: &self.calls, client })
    }

    /// Makes a sandbox. Who gives up meanwhile leaves nothing half made: what comes then is closed.
    pub async fn make(&self, account: impl Into<Account>, source: Source) -> Result<InUse> {
        let place = self.store.reserve(account)?;
        let (backend, store) = (Arc::clone(&self.backend), Arc::clone(&self.store));
        let (executor, from) = (self.executor.clone(), self.place.clone());
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let made = match make(&*backend, &executor, &from, source).await {
                Ok(sandbox) => store.put(place, sandbox).await,
                Err(error) => Err(error),
            };
            // What nobody takes is closed by being dropped, here or on its way.
            let _ = sender.send(made.map(|sandbox| Unclaimed { store, sandbox: Some(sandbox) }));
        });
        let died = || Error::new(ErrorKind::Internal, "create", "the task that makes the sandbox ended early");
        receiver.await.map_err(|_| died())??.claim().ok_or_else(died)
    }
}

/// Calls that run, by the address of their client where there are many.
#[derive(Debug, Default)]
struct Calls(Mutex<HashMap<Option<Client>, usize>>);

/// A call that runs.
#[derive(Debug)]
pub struct InCall<'a> {
    calls: &'a Calls,
    client: Option<Client>,
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        let mut counts = self.calls.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// A sandbox on its way to who asked for it. Dropped, it is closed.
#[derive(Debug)]
struct Unclaimed {
    store: Arc<Store>,
    sandbox: Option<InUse>,
}

impl Unclaimed {
    fn claim(mut self) -> Option<InUse> {
        self.sandbox.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(unwanted) = self.sandbox.take() {
            self.store.abandon(unwanted.id());
        }
    }
}

async fn make(backend: &dyn Backend, executor: &Executor, place: &Place, source: Source) -> Result<Arc<dyn Sandbox>> {
    match source {
        Source::Spec(spec) => backend.create(*spec).await,
        Source::State(state) => go_on(backend, executor, place, state).await,
    }
}

/// A sandbox that goes on from another's state has a line in the audit log; where that cannot be written and must be, there
/// is none.
async fn go_on(backend: &dyn Backend, executor: &Executor, place: &Place, state: State) -> Result<Arc<dyn Sandbox>> {
    let (spec, origin) = match &state {
        State::Snapshot(frozen, spec) => (&**spec, Origin::snapshot(&frozen.snapshot, &frozen.name).of(&frozen.from)),
        State::Fork(sandbox) => (sandbox.spec(), Origin::sandbox(Sandbox::id(&***sandbox))),
    };
    let restoring = executor.begin_restore(place, spec, origin).await?;
    let made = match state {
        State::Snapshot(frozen, spec) => backend.restore(frozen.snapshot, *spec).await,
        State::Fork(sandbox) => sandbox.fork().await,
    };
    let sandbox = match made {
        Ok(sandbox) => sandbox,
        Err(error) => return Err(restoring.failed(error).await),
    };
    match restoring.made(&*sandbox).await {
        Ok(()) => Ok(sandbox),
        Err(error) => {
            // What cannot be logged does not go on.
            let _ = sandbox.close().await;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Owner;
    use cofferdam_simulated::{Config, SimulatedBackend};
    use std::task::{Context, Waker};

    // On one thread, so that nothing is made before somebody waits for it.
    /// Promise (MCP server): A sandbox whose client has gone before its delivery is closed.
    #[tokio::test]
    async fn a_sandbox_that_is_delivered_to_nobody_is_closed() {
        let backend = Arc::new(SimulatedBackend::new(Config::default()));
        let server = Server::new(backend, McpConfig::default()).unwrap();
        let owner = Owner::Session(server.0.next_session());
        let store = &server.0.store;
        let until = async |count| {
            while store.sandboxes(owner).len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let mut making = Box::pin(server.0.make(owner, Source::Spec(Box::default())));
        assert!(making.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        until(1).await;
        // It is on its way now, and who asked for it goes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(making);
        tokio::time::timeout(Duration::from_secs(10), until(0)).await.expect("it is closed");
        let kept = server.0.make(owner, Source::Spec(Box::default())).await.unwrap();
        assert_eq!(store.sandboxes(owner), [kept.id()]);
    }
}

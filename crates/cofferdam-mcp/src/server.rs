//! State that all clients of one server share: the backend, the sandboxes, the bounds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_code::{BackendProfile, Executor, Origin, Sessions};
use cofferdam_contract::{Backend, Error, ErrorKind, Result, Sandbox, Spec};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::calls::shells;
use crate::config::McpConfig;
use crate::handler::Handler;
use crate::http::Client;
use crate::store::{Account, Frozen, InUse, Store, part_of_client};

/// A server that creates sandboxes of one backend for its clients, and closes all of them at shutdown.
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
    /// The backend's description for code execution.
    pub(crate) profile: BackendProfile,
    calls: Calls,
    sessions: AtomicU64,
}

/// The source of a new sandbox.
pub(crate) enum Source {
    /// A spec.
    Spec(Box<Spec>),
    /// The state of another sandbox.
    State(State),
}

/// The state from which a sandbox resumes.
pub(crate) enum State {
    /// A snapshot, with the limits of a spec.
    Snapshot(Box<Frozen>, Box<Spec>),
    /// The current state of another sandbox.
    Fork(InUse),
}

impl Server {
    /// Creates a server for the sandboxes of `backend`. Must be called in a tokio runtime with time enabled.
    pub fn new(backend: Arc<dyn Backend>, config: McpConfig) -> Result<Self> {
        config.validate()?;
        let store = Store::new(config.bounds.clone());
        let calls = Calls::default();
        let executor = Executor::new(config.code.clone())?;
        let profile = BackendProfile::of(&*backend);
        let sessions = AtomicU64::new(0);
        let interpreters = Sessions::new(executor.clone());
        Ok(Self(Arc::new(Inner { backend, config, store, executor, interpreters, profile, calls, sessions })))
    }

    /// Creates the handler of one client session. Dropping it closes the sandboxes of the session.
    pub fn session(&self) -> Handler {
        let handler = self.stateless();
        handler.begin_session();
        handler
    }

    /// Creates a handler of requests without a session. A request can begin a session.
    pub fn stateless(&self) -> Handler {
        Handler::new(Arc::clone(&self.0))
    }

    pub(crate) fn config(&self) -> &McpConfig {
        &self.0.config
    }

    /// Closes all sandboxes, and waits until all are closed.
    ///
    /// # Errors
    /// Returns an error if sandboxes or snapshots are left after `timeout`.
    pub async fn shutdown(&self, timeout: Duration) -> Result<()> {
        match self.0.store.shutdown(timeout).await {
            0 => Ok(()),
            left => Err(Error::new(
                ErrorKind::Internal,
                "shutdown",
                format!("{left} sandboxes or snapshots were not closed within {timeout:?}"),
            )),
        }
    }
}

impl Inner {
    /// Returns the number of a new session.
    pub fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if a shell is allowed.
    pub fn runs_shells(&self) -> bool {
        shells(&self.executor.config().languages).next().is_some()
    }

    /// Reserves one of the concurrent calls.
    pub fn enter_call(&self, client: Option<Client>) -> Result<InCall<'_>> {
        let max = self.config.bounds.calls;
        let mut counts = self.calls.0.lock();
        let own = counts.get(&client).copied().unwrap_or_default();
        let full = |whose: &str, max: usize| {
            Error::new(
                ErrorKind::ResourceExhausted,
                "call",
                format!("the limit of {max} concurrent calls {whose} is reached"),
            )
            .with_remedy("call again when one of them has ended")
        };
        if client.is_some() && own >= part_of_client(max) {
            return Err(full("of this address", part_of_client(max)));
        }
        if counts.values().sum::<usize>() >= max {
            return Err(full("of this server", max));
        }
        *counts.entry(client).or_default() += 1;
        Ok(InCall { calls: &self.calls, client })
    }

    /// Creates a sandbox. A cancelled call does not interrupt the creation: the sandbox is closed afterwards.
    pub async fn create(&self, account: impl Into<Account>, source: Source) -> Result<InUse> {
        let reserved = self.store.reserve(account)?;
        let (backend, store) = (Arc::clone(&self.backend), Arc::clone(&self.store));
        let (executor, profile) = (self.executor.clone(), self.profile.clone());
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let created = match create(&*backend, &executor, &profile, source).await {
                Ok(sandbox) => store.put(reserved, sandbox).await,
                Err(error) => Err(error),
            };
            // Without a receiver, dropping the sandbox here or in the channel closes it.
            let _ = sender.send(created.map(|sandbox| Unclaimed { store, sandbox: Some(sandbox) }));
        });
        let died = || Error::new(ErrorKind::Internal, "create", "the task that creates the sandbox was aborted");
        receiver.await.map_err(|_| died())??.claim().ok_or_else(died)
    }
}

/// Numbers of running calls by client, if the server has many clients.
#[derive(Debug, Default)]
struct Calls(Mutex<HashMap<Option<Client>, usize>>);

/// A running call.
#[derive(Debug)]
pub struct InCall<'a> {
    calls: &'a Calls,
    client: Option<Client>,
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        let mut counts = self.calls.0.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// A sandbox that its caller has not received yet. Dropping it closes the sandbox.
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
        if let Some(unclaimed) = self.sandbox.take() {
            self.store.abandon(unclaimed.id());
        }
    }
}

async fn create(
    backend: &dyn Backend,
    executor: &Executor,
    profile: &BackendProfile,
    source: Source,
) -> Result<Arc<dyn Sandbox>> {
    match source {
        Source::Spec(spec) => executor.record_network(backend.create(*spec).await?).await,
        Source::State(state) => resume(backend, executor, profile, state).await,
    }
}

/// Creates a sandbox from another one's state, with a line in the audit log. Fails if a required line cannot be
/// written.
async fn resume(
    backend: &dyn Backend,
    executor: &Executor,
    profile: &BackendProfile,
    state: State,
) -> Result<Arc<dyn Sandbox>> {
    let (spec, origin) = match &state {
        State::Snapshot(frozen, spec) => {
            ((**spec).clone(), Origin::snapshot(&frozen.snapshot, &frozen.name).of(&frozen.from))
        }
        State::Fork(sandbox) => (sandbox.spec().clone(), Origin::sandbox(Sandbox::id(&***sandbox))),
    };
    let create = async {
        let sandbox = match state {
            State::Snapshot(frozen, spec) => backend.restore(frozen.snapshot, *spec).await,
            State::Fork(sandbox) => sandbox.fork().await,
        };
        sandbox.map(|sandbox| (sandbox, ()))
    };
    let (sandbox, ()) = executor.restore(profile, &spec, origin, create).await?;
    Ok(sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Owner;
    use cofferdam_simulated::{SimulatedBackend, SimulatedConfig};
    use std::task::{Context, Waker};

    // Runs on one thread, so that no sandbox is created before the test waits for it.
    /// Promise (MCP server): A sandbox whose client has gone before its delivery is closed.
    #[tokio::test]
    async fn a_sandbox_that_no_caller_receives_is_closed() {
        let backend = Arc::new(SimulatedBackend::new(SimulatedConfig::default()));
        let server = Server::new(backend, McpConfig::default()).unwrap();
        let owner = Owner::Session(server.0.next_session());
        let store = &server.0.store;
        let until = async |count| {
            while store.sandboxes(owner).len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let mut making = Box::pin(server.0.create(owner, Source::Spec(Box::default())));
        assert!(making.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        until(1).await;
        // The sandbox is in the channel now, and its receiver is dropped.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(making);
        tokio::time::timeout(Duration::from_secs(10), until(0)).await.expect("it is closed");
        let created = server.0.create(owner, Source::Spec(Box::default())).await.unwrap();
        assert_eq!(store.sandboxes(owner), [created.id()]);
    }
}

//! Client sessions over HTTP: the SDK's own session manager with a limit on their number, in all and per client. If a
//! limit is reached, an idle session is evicted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use parking_lot::{Mutex, MutexGuard};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use tokio::time::Instant;

use super::connections::{Client, NoRoom};
use crate::store::part_of_client;

/// Minimum idle time before a session may be evicted.
const MIN_IDLE: Duration = Duration::from_secs(60);

tokio::task_local! {
    /// The current request.
    pub static REQUEST: Arc<Request>;
}

/// Client and outcome of a request.
#[derive(Debug)]
pub struct Request {
    /// The client of the request.
    pub client: Client,
    refused: OnceLock<NoRoom>,
}

impl Request {
    /// Creates the state of a client's request.
    pub fn of(client: Client) -> Arc<Self> {
        Arc::new(Self { client, refused: OnceLock::new() })
    }

    /// Returns the session limit for which the request was refused, if any.
    pub fn refused(&self) -> Option<NoRoom> {
        self.refused.get().copied()
    }
}

/// The client sessions.
#[derive(Debug)]
pub struct Sessions {
    inner: LocalSessionManager,
    max: usize,
    min_idle: Duration,
    beginning: tokio::sync::Mutex<()>,
    uses: Arc<Mutex<HashMap<SessionId, Use>>>,
}

/// The use of a session.
#[derive(Debug, Clone, Copy)]
struct Use {
    client: Option<Client>,
    last: Instant,
    /// Number of requests that are being answered.
    busy: usize,
}

impl Sessions {
    /// Allows at most `max` sessions, three quarters of them to one client. Ends each after `idle` without a message.
    pub fn new(max: usize, idle: Duration) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(idle);
        // Sent answers are cached only until the next request. With a longer time, a client could fill the cache.
        inner.session_config.completed_cache_ttl = Duration::ZERO;
        let beginning = tokio::sync::Mutex::new(());
        Self { inner, max, min_idle: MIN_IDLE.min(idle), beginning, uses: Arc::default() }
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<SessionId, Use>> {
        self.uses.lock()
    }

    fn used(&self, id: &SessionId) {
        if let Some(of) = self.uses().get_mut(id) {
            of.last = Instant::now();
        }
    }

    /// Evicts one of `live` sessions if a limit is reached. A client at its own limit loses one of its own.
    async fn make_room(&self, live: usize, client: Option<Client>) -> Result<(), NoRoom> {
        let Some((no_room, among)) = reached(&self.uses(), live, client, self.max) else { return Ok(()) };
        let chosen = victim(&self.uses(), among, Instant::now(), self.min_idle);
        let id = chosen.ok_or(no_room)?;
        self.uses().remove(&id);
        self.inner.close_session(&id).await.map_err(|_| no_room)
    }
}

/// The clients whose sessions may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Among {
    All,
    Own(Client),
}

/// Returns the limit that a further session of a client would exceed, and the clients whose sessions make room for it.
fn reached(uses: &HashMap<SessionId, Use>, live: usize, client: Option<Client>, max: usize) -> Option<(NoRoom, Among)> {
    let share = part_of_client(max);
    if let Some(client) = client
        // The share of a small limit is the whole limit.
        && share < max
        && uses.values().filter(|of| of.client == Some(client)).count() >= share
    {
        return Some((NoRoom::Client, Among::Own(client)));
    }
    (live >= max).then_some((NoRoom::Server, Among::All))
}

/// Returns the session with the longest idle time, among those of the client with most sessions.
fn victim(uses: &HashMap<SessionId, Use>, among: Among, now: Instant, min_idle: Duration) -> Option<SessionId> {
    let among = |of: &Use| among == Among::All || of.client.map(Among::Own) == Some(among);
    let uses: Vec<_> = uses.iter().filter(|(_, of)| among(of)).collect();
    let mut counts: BTreeMap<Option<Client>, usize> = BTreeMap::new();
    for (_, of) in &uses {
        *counts.entry(of.client).or_default() += 1;
    }
    let idle = |of: &Use| of.busy == 0 && now.saturating_duration_since(of.last) >= min_idle;
    let candidates = uses.into_iter().filter(|(_, of)| idle(of));
    let chosen = candidates.max_by_key(|(_, of)| (counts[&of.client], now.saturating_duration_since(of.last)));
    chosen.map(|(id, _)| id.clone())
}

/// The answer to a request. Its session is in use until it is dropped.
struct Busy<S> {
    inner: Pin<Box<S>>,
    id: SessionId,
    uses: Arc<Mutex<HashMap<SessionId, Use>>>,
}

impl<S> Busy<S> {
    fn new(inner: S, sessions: &Sessions, id: &SessionId) -> Self {
        if let Some(of) = sessions.uses().get_mut(id) {
            of.busy += 1;
        }
        Self { inner: Box::pin(inner), id: id.clone(), uses: Arc::clone(&sessions.uses) }
    }
}

impl<S: Stream> Stream for Busy<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.inner.as_mut().poll_next(context)
    }
}

impl<S> Drop for Busy<S> {
    fn drop(&mut self) {
        if let Some(of) = self.uses.lock().get_mut(&self.id) {
            (of.busy, of.last) = (of.busy.saturating_sub(1), Instant::now());
        }
    }
}

/// The reason why a session request is refused.
#[derive(Debug)]
pub enum Refused {
    /// The session limit of the client or the server is reached.
    Full(NoRoom),
    /// The SDK's reason.
    Own(LocalSessionManagerError),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(NoRoom::Client) => f.write_str("this address has reached its limit of client sessions"),
            Self::Full(NoRoom::Server) => f.write_str("this server has reached its limit of client sessions"),
            Self::Own(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<LocalSessionManagerError> for Refused {
    fn from(error: LocalSessionManagerError) -> Self {
        Self::Own(error)
    }
}

impl SessionManager for Sessions {
    type Error = Refused;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Refused> {
        // Counts and creates in one step.
        let _beginning = self.beginning.lock().await;
        let live: Vec<SessionId> = self.inner.sessions.read().await.keys().cloned().collect();
        self.uses().retain(|id, _| live.contains(id));
        let client = REQUEST.try_with(|request| request.client).ok();
        if let Err(no_room) = self.make_room(live.len(), client).await {
            // The service answers with this reason.
            let _ = REQUEST.try_with(|request| request.refused.set(no_room));
            return Err(Refused::Full(no_room));
        }
        let created = self.inner.create_session().await?;
        self.uses().insert(created.0.clone(), Use { client, last: Instant::now(), busy: 0 });
        Ok(created)
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Refused> {
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Refused> {
        Ok(self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Refused> {
        self.uses().remove(id);
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        self.used(id);
        Ok(Busy::new(self.inner.create_stream(id, message).await?, self, id))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Refused> {
        self.used(id);
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        self.used(id);
        Ok(self.inner.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        self.used(id);
        Ok(self.inner.resume(id, last_event_id).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_session_of_the_busiest_client_makes_room() {
        let now = Instant::now() + Duration::from_secs(3600);
        let client = |number: u8| Some(Client::of([192, 0, 2, number].into()));
        let of = |of: u8, idle: u64, busy| Use { client: client(of), last: now - Duration::from_secs(idle), busy };
        let chosen = |all: &[Use]| {
            let uses = all.iter().enumerate().map(|(at, of)| (SessionId::from(at.to_string()), *of)).collect();
            victim(&uses, Among::All, now, Duration::from_secs(60)).map(|id| id.to_string())
        };
        // The other client's session is older, but is that client's only one.
        assert_eq!(chosen(&[of(1, 900, 0), of(2, 100, 0), of(2, 300, 0)]).as_deref(), Some("2"));
        assert_eq!(chosen(&[of(1, 900, 0), of(2, 100, 1), of(2, 300, 1)]).as_deref(), Some("0"));
        assert_eq!(chosen(&[of(1, 59, 0), of(2, 900, 1)]), None);
    }

    #[test]
    fn a_client_with_its_share_of_sessions_makes_room_among_its_own() {
        let now = Instant::now() + Duration::from_secs(3600);
        let client = |number: u8| Client::of([192, 0, 2, number].into());
        let of = |of: u8, idle: u64| Use { client: Some(client(of)), last: now - Duration::from_secs(idle), busy: 0 };
        let uses = |all: &[Use]| -> HashMap<SessionId, Use> {
            all.iter().enumerate().map(|(at, of)| (SessionId::from(at.to_string()), *of)).collect()
        };
        let chosen = |uses: &HashMap<SessionId, Use>| {
            victim(uses, Among::Own(client(1)), now, Duration::from_secs(60)).map(|id| id.to_string())
        };
        let full = uses(&[of(1, 100), of(1, 300), of(1, 0), of(2, 900)]);
        let own = Some((NoRoom::Client, Among::Own(client(1))));
        assert_eq!(reached(&full, 4, Some(client(1)), 4), own, "its own limit comes before the server's");
        assert_eq!(chosen(&full).as_deref(), Some("1"), "the longest idle one of its own");
        assert_eq!(reached(&full, 4, Some(client(2)), 4), Some((NoRoom::Server, Among::All)));
        let active = uses(&[of(1, 0), of(1, 0), of(1, 0), of(2, 900)]);
        assert_eq!(chosen(&active), None, "sessions of others are kept");
        let room = uses(&[of(1, 0), of(1, 0), of(1, 0)]);
        assert_eq!(reached(&room, 3, Some(client(1)), 4), own, "a quarter stays free for others");
        assert_eq!(reached(&room, 3, Some(client(2)), 4), None);
        assert_eq!(reached(&room, 3, None, 4), None);
    }
}

//! The daemon's side.
//!
//! ```text
//! start --> listening --stop, idle--> draining --runs ended or killed--> stopped, everything removed
//! ```

mod connections;
mod conversation;
mod service;
mod visit;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Result};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::DaemonConfig;
use crate::error;
use crate::peer::Peer;
use crate::place::{Claimed, Place};
use service::Service;

/// Number of connections beyond those that may run something. They are refused a run, or ask for the status or a stop.
const MAX_VISITORS: usize = 16;
/// The delay after a failed accept, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time in which clients that were greeted before the stop may still send their request.
const REQUEST_GRACE: Duration = Duration::from_millis(100);
/// The time in which ended runs may still send their last messages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A daemon that listens.
#[derive(Debug)]
pub struct Server {
    claimed: Claimed,
    service: Arc<Service>,
    drain: Duration,
    idle_exit: Option<Duration>,
    room: Arc<Semaphore>,
    visitors: Arc<Semaphore>,
}

impl Server {
    /// Claims `directory` as its only daemon and starts to prepare sandboxes and interpreters. Must be called in a
    /// tokio runtime.
    ///
    /// # Errors
    /// `Conflict` if another daemon is running, `Denied` if the directory is not safe.
    pub fn start(directory: PathBuf, backend: Arc<dyn Backend>, config: DaemonConfig) -> Result<Self> {
        let pool = config.pool()?;
        let claimed = Place::claim(&directory)?;
        let (drain, idle_exit, connections) = (config.drain, config.idle_exit, config.connections);
        let service = Arc::new(Service::start(backend, pool, config)?);
        let (room, visitors) = (Arc::new(Semaphore::new(connections)), Arc::new(Semaphore::new(MAX_VISITORS)));
        Ok(Self { claimed, service, drain, idle_exit, room, visitors })
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.claimed.socket()
    }

    /// Serves until `end` completes, a client sends a stop, or the idle time is over. Then waits for runs to end, kills
    /// the rest after the drain time, and removes everything.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Result<()> {
        let listener = self.listener()?;
        let mut visits = JoinSet::new();
        tokio::select! {
            () = self.accept(listener, &mut visits) => {}
            () = end => {}
            () = self.service.stop_requested() => {}
            () = self.idle() => {}
        }
        self.claimed.hide();
        // A client that was promised a run keeps the promise, because it could have run elsewhere.
        self.service.refuse_new_clients();
        tokio::time::sleep(REQUEST_GRACE).await;
        self.service.refuse();
        let ended = self.service.shutdown(self.drain).await;
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, async { while visits.join_next().await.is_some() {} }).await;
        visits.shutdown().await;
        ended
    }

    fn listener(&mut self) -> Result<UnixListener> {
        let cannot = |error: std::io::Error| error::os("cannot listen", error);
        let listener = self.claimed.listener().ok_or_else(error::stopping)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        UnixListener::from_std(listener).map_err(cannot)
    }

    async fn accept(&self, listener: UnixListener, visits: &mut JoinSet<()>) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(visit) = self.admit(stream) {
                        visits.spawn(visit);
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
            while visits.try_join_next().is_some() {}
        }
    }

    /// Admits a connection. Reads nothing from another user's connection, or from one beyond all limits.
    fn admit(&self, stream: UnixStream) -> Option<impl Future<Output = ()> + use<>> {
        let peer = Peer::of(&stream).ok()?;
        let take = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        let (room, visitor): (Option<OwnedSemaphorePermit>, _) = match take(&self.room) {
            Some(room) => (Some(room), None),
            None => (None, Some(take(&self.visitors)?)),
        };
        let service = Arc::clone(&self.service);
        Some(async move {
            visit::receive(stream, peer, service, room).await;
            drop(visitor);
        })
    }

    /// Returns when nothing has run for the daemon's idle time.
    async fn idle(&self) {
        let Some(limit) = self.idle_exit else { return std::future::pending().await };
        loop {
            match self.service.idle_since() {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => tokio::time::sleep_until(since + limit).await,
                None => tokio::time::sleep_until(Instant::now() + limit).await,
            }
        }
    }
}

//! The daemon's side.
//!
//! ```text
//! start --> listening --told to end, idle--> draining --runs ended, or cut off--> gone, nothing left
//! ```

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

/// Connections beyond those that may run something: they are told that there is no room, or ask and stop.
const VISITORS: usize = 16;
/// The wait after a connection could not be accepted, for want of descriptors say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long who was greeted just now has to say what it wants, once the daemon ends.
const LAST_ORDERS: Duration = Duration::from_millis(100);
/// How long ended conversations have to say their last words.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
    /// Becomes the one daemon of `directory`, and begins to make sandboxes and interpreters ahead. Must be called in a
    /// tokio runtime.
    ///
    /// # Errors
    /// `Conflict` where another daemon is there, `Denied` where the directory is not safe.
    pub fn start(directory: PathBuf, backend: Arc<dyn Backend>, config: DaemonConfig) -> Result<Self> {
        let pool = config.pool()?;
        let claimed = Place::claim(&directory)?;
        let (drain, idle_exit, connections) = (config.drain, config.idle_exit, config.connections);
        let service = Arc::new(Service::start(backend, pool, config)?);
        let (room, visitors) = (Arc::new(Semaphore::new(connections)), Arc::new(Semaphore::new(VISITORS)));
        Ok(Self { claimed, service, drain, idle_exit, room, visitors })
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.claimed.socket()
    }

    /// Serves until `end` comes, a client says stop, or nobody has come for long; then lets runs end for a while, ends what is
    /// left, and takes everything away.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Result<()> {
        let listener = self.listener()?;
        let mut visits = JoinSet::new();
        tokio::select! {
            () = self.accept(listener, &mut visits) => {}
            () = end => {}
            () = self.service.told_to_stop() => {}
            () = self.idle() => {}
        }
        self.claimed.hide();
        // Who was told that there is room has it still, so that nobody fails who could have gone elsewhere.
        self.service.close_door();
        tokio::time::sleep(LAST_ORDERS).await;
        self.service.refuse();
        let ended = self.service.shutdown(self.drain).await;
        let _ = tokio::time::timeout(LAST_WORDS, async { while visits.join_next().await.is_some() {} }).await;
        visits.shutdown().await;
        ended
    }

    fn listener(&mut self) -> Result<UnixListener> {
        let cannot = |error: std::io::Error| error::os("cannot listen", error);
        let listener = self.claimed.listener().ok_or_else(error::ending)?;
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

    /// Lets somebody in. Another user, and who comes beyond every bound, is not even read from.
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

    /// Returns when nothing has run for as long as the daemon may idle.
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

//! The server's side.
//!
//! ```text
//! connection --peer checked--> first byte --0--> run, status or stop
//!                                         '-----> HTTP, if there is an HTTP server
//! start --> listening --stop, idle--> draining --runs ended or time over--> runs killed, everything removed
//! ```

mod connections;
mod conversation;
mod handshake;
mod service;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::Result;
use cofferdam_engine::PreparedBackend;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::config::ResidentConfig;
use crate::error;
use crate::message::FIRST_BYTE;
use crate::peer::Peer;
use crate::socket_directory::Claimed;
use service::Service;

/// Number of connections beyond those that may run something. They are refused a run, or ask for the status or a stop.
const MAX_EXTRA_CONNECTIONS: usize = 16;
/// Number of connections whose first byte has not arrived or that no HTTP server has taken yet.
const MAX_NEW: usize = 64;
/// The time for the first byte, and for the HTTP server to take a connection.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay after a failed accept, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest interval at which use is polled for the idle time.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the end of runs is polled.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);
/// The time in which clients that were greeted before the stop may still send their request.
const REQUEST_GRACE: Duration = Duration::from_millis(100);
/// The time in which ended runs may still send their last messages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// An HTTP server behind the same socket.
pub struct Http {
    /// The queue of its connections.
    pub connections: mpsc::Sender<UnixStream>,
    /// Returns true while it is in use.
    pub is_busy: Box<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// A server that listens on the private socket of its user.
#[derive(Debug)]
pub struct ResidentServer {
    claimed: Claimed,
    service: Arc<Service>,
    backend: Arc<PreparedBackend>,
    drain: Duration,
    idle_exit: Option<Duration>,
    http: Option<Arc<Http>>,
    room: Arc<Semaphore>,
    extra_connections: Arc<Semaphore>,
    new: Arc<Semaphore>,
}

impl ResidentServer {
    /// Creates a server for a claimed directory. Runs get their sandboxes from `backend`. Without `http`, connections
    /// of HTTP are closed.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid configuration.
    pub fn new(
        claimed: Claimed,
        backend: Arc<PreparedBackend>,
        config: ResidentConfig,
        http: Option<Http>,
    ) -> Result<Self> {
        config.check()?;
        let service = Arc::new(Service::new(Arc::clone(&backend), &config));
        let ResidentConfig { build: _, surroundings: _, max_runs, idle_exit, drain } = config;
        let semaphore = |count| Arc::new(Semaphore::new(count));
        Ok(Self {
            claimed,
            service,
            backend,
            drain,
            idle_exit,
            http: http.map(Arc::new),
            room: semaphore(max_runs),
            extra_connections: semaphore(MAX_EXTRA_CONNECTIONS),
            new: semaphore(MAX_NEW),
        })
    }

    /// Serves until `end` completes, a client sends a stop, or the idle time is over. Then waits for runs to end, and
    /// for `close_http` to close what the HTTP server has. Kills the rest after the drain time, and removes everything.
    pub async fn run(
        mut self,
        end: impl Future<Output = ()>,
        close_http: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<()> {
        let listener = self.listener()?;
        let mut connections = JoinSet::new();
        tokio::select! {
            () = self.accept(listener, &mut connections) => {}
            () = end => {}
            () = self.service.stop_requested() => {}
            () = self.idle() => {}
        }
        self.claimed.hide();
        // A client that was promised a run keeps the promise, because it could have run elsewhere.
        self.service.refuse_new_clients();
        let drained = async {
            tokio::time::sleep(REQUEST_GRACE).await;
            self.service.refuse();
            let _ = timeout(self.drain, self.runs_ended()).await;
        };
        let ((), closed) = tokio::join!(drained, close_http());
        let ended = self.backend.shutdown(Duration::ZERO).await;
        let _ = timeout(FLUSH_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
        connections.shutdown().await;
        closed.and(ended)
    }

    fn listener(&mut self) -> Result<UnixListener> {
        let cannot = |error: io::Error| error::os("cannot listen", error);
        let listener = self.claimed.listener().ok_or_else(error::stopping)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        UnixListener::from_std(listener).map_err(cannot)
    }

    async fn accept(&self, listener: UnixListener, connections: &mut JoinSet<()>) {
        loop {
            // The semaphore is never closed.
            let Ok(new) = Arc::clone(&self.new).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(connection) = self.admit(stream, new) {
                        connections.spawn(connection);
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
            while connections.try_join_next().is_some() {}
        }
    }

    /// Admits a connection. Reads nothing from the connection of another user or of a guest.
    fn admit(&self, stream: UnixStream, new: OwnedSemaphorePermit) -> Option<impl Future<Output = ()> + use<>> {
        let peer = Peer::of(&stream).ok()?;
        let (service, http) = (Arc::clone(&self.service), self.http.clone());
        let (room, extra_connections) = (Arc::clone(&self.room), Arc::clone(&self.extra_connections));
        Some(async move {
            match timeout(FIRST_TIMEOUT, is_run(&stream)).await {
                Ok(Ok(true)) => {
                    drop(new);
                    receive(stream, peer, service, room, extra_connections).await;
                }
                Ok(Ok(false)) => {
                    if let Some(http) = http {
                        // An overloaded server drops the connection.
                        let _ = timeout(FIRST_TIMEOUT, http.connections.send(stream)).await;
                    }
                }
                // The client has left, or is too slow.
                _ => {}
            }
        })
    }

    /// Returns when nothing has been in use for the server's idle time.
    async fn idle(&self) {
        let Some(limit) = self.idle_exit else { return std::future::pending().await };
        let mut since = Instant::now();
        loop {
            match self.service.idle_since() {
                Some(ended) if !self.http.as_ref().is_some_and(|http| (http.is_busy)()) => since = since.max(ended),
                _ => since = Instant::now(),
            }
            if since.elapsed() >= limit {
                return;
            }
            tokio::time::sleep(IDLE_INTERVAL.min(limit / 4)).await;
        }
    }

    async fn runs_ended(&self) {
        while self.service.idle_since().is_none() {
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    }
}

/// Waits for the first byte of a connection, and leaves it there. Returns true if the client wants a run, the status or
/// a stop.
async fn is_run(stream: &UnixStream) -> io::Result<bool> {
    let mut first = [0xff];
    let peek = || Ok(recv(stream.as_fd(), &mut first, RecvFlags::PEEK)?.0);
    match stream.async_io(Interest::READABLE, peek).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first == [FIRST_BYTE]),
    }
}

async fn receive(
    mut stream: UnixStream,
    peer: Peer,
    service: Arc<Service>,
    room: Arc<Semaphore>,
    extra_connections: Arc<Semaphore>,
) {
    let room = room.try_acquire_owned().ok();
    let extra = if room.is_some() { None } else { extra_connections.try_acquire_owned().ok() };
    // It has arrived already.
    if (room.is_some() || extra.is_some()) && stream.read_u8().await.is_ok() {
        handshake::receive(stream, peer, service, room).await;
    }
}

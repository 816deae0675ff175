//! The streams to the agent, which outlive the connections behind them.
//!
//! ```text
//! streams <--pair--> pump <--Unix socket, CONNECT--> Firecracker <--vsock--> agent
//!
//! new --boots--> connecting --the agent's first byte--> connected --detach--> detached --attach--> connecting
//! new --restored-----------------------------------------------------------> detached
//! connected --lost before the first byte, within a time limit--> connecting
//! ```
//!
//! No connection outlives a snapshot: in the VM that resumes and in those that are restored, the device reports that
//! all connections are closed. So the channel closes its connection before, while both sides are quiet, and opens
//! another one when the VM resumes. A connection counts only after the agent itself has confirmed it. If it is lost
//! before a byte went either way, the agent listens again, and the channel opens another one.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::process::{End, Tree, os};
use super::vsock;
use crate::error::VmError;

/// The agent's port.
pub(super) const PORT: u32 = 1024;
/// Time limit for one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two attempts: the first and the longest.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(2);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Time after the first connection in which an unused connection that is lost is replaced.
const QUIET_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to the pump, with the channel for its confirmation.
#[derive(Debug)]
enum Request {
    Detach(oneshot::Sender<()>),
    /// With this deadline.
    Attach(Instant, oneshot::Sender<bool>),
}

/// The connection to the agent. Dropping it closes the other ends of the streams.
#[derive(Debug)]
pub(super) struct Channel {
    requests: mpsc::Sender<Request>,
}

/// Creates the two ends of a channel: the host's, and the one that is forwarded to the socket.
pub(super) fn pair(socket: &Path) -> Result<(UnixStream, UnixStream)> {
    let create = || {
        let (ours, theirs) = Socket::pair()?;
        let stream = |socket: Socket| {
            socket.set_nonblocking(true)?;
            UnixStream::from_std(OwnedFd::from(socket).into())
        };
        Ok((stream(ours)?, stream(theirs)?))
    };
    create().map_err(|error| os("create a pair of sockets", socket, error))
}

impl Channel {
    /// Starts the pump, and returns the streams. `boots` says that the agent will listen soon; otherwise the pump waits
    /// until it is attached.
    pub(super) fn begin(
        (ours, theirs): (UnixStream, UnixStream),
        (socket, tree): (PathBuf, Tree),
        end: watch::Receiver<Option<End>>,
        boots: bool,
    ) -> (Self, UnixStream) {
        let (requests, received) = mpsc::channel(1);
        tokio::spawn(Pump { socket, _tree: tree, streams: theirs, requests: received, end }.run(boots));
        (Self { requests }, ours)
    }

    /// Closes the connection. Both sides must be quiet.
    pub(super) async fn detach(&self) {
        let (done, confirmed) = oneshot::channel();
        if self.requests.send(Request::Detach(done)).await.is_ok() {
            // A pump that has ended has no connection.
            let _ = confirmed.await;
        }
    }

    /// Opens another connection, within a time limit.
    pub(super) async fn attach(&self, timeout: Duration) -> Result<(), VmError> {
        let (done, confirmed) = oneshot::channel();
        let failed = |what: &str| Err(super::broken(what));
        if self.requests.send(Request::Attach(Instant::now() + timeout, done)).await.is_err() {
            return failed("the connection to the VM has ended");
        }
        match confirmed.await {
            Ok(true) => Ok(()),
            Ok(false) => failed("the guest agent did not accept the connection after the VM was resumed"),
            Err(_) => failed("the VM ended while the connection was opened"),
        }
    }
}

struct Pump {
    socket: PathBuf,
    /// The mount that the socket's path starts at, if it must be kept open.
    _tree: Tree,
    streams: UnixStream,
    requests: mpsc::Receiver<Request>,
    end: watch::Receiver<Option<End>>,
}

impl Pump {
    /// Runs until the VM has ended, or one side of the connection has.
    async fn run(mut self, boots: bool) {
        let mut connection = None;
        let mut quiet_until = Instant::now() + QUIET_TIMEOUT;
        if boots {
            // The callers that wait for the agent limit the time of a boot.
            tokio::select! {
                established = connected(&self.socket, None) => connection = established,
                _ = self.end.wait_for(Option::is_some) => return,
                // The VM was dropped while it booted.
                _ = self.requests.recv() => return,
            }
            quiet_until = Instant::now() + QUIET_TIMEOUT;
        }
        loop {
            let event = match &mut connection {
                None => Event::Request(self.requests.recv().await),
                Some(stream) => tokio::select! {
                    request = self.requests.recv() => Event::Request(request),
                    outcome = forward(&mut self.streams, stream) => Event::End(outcome),
                    _ = self.end.wait_for(Option::is_some) => return,
                },
            };
            let request = match event {
                Event::Request(request) => request,
                Event::End(Outcome::Lost) if Instant::now() < quiet_until => {
                    tokio::select! {
                        established = connected(&self.socket, Some(quiet_until)) => {
                            connection = established;
                            if connection.is_some() {
                                continue;
                            }
                            return;
                        }
                        request = self.requests.recv() => request,
                        _ = self.end.wait_for(Option::is_some) => return,
                    }
                }
                Event::End(_) => return,
            };
            match request {
                None => return,
                Some(Request::Detach(done)) => {
                    connection = None;
                    let _ = done.send(());
                }
                Some(Request::Attach(by, done)) => {
                    connection = tokio::select! {
                        established = connected(&self.socket, Some(by)) => established,
                        _ = self.end.wait_for(Option::is_some) => return,
                    };
                    quiet_until = Instant::now() + QUIET_TIMEOUT;
                    let _ = done.send(connection.is_some());
                }
            }
        }
    }
}

/// The next event for a pump.
#[derive(Debug)]
enum Event {
    Request(Option<Request>),
    End(Outcome),
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// One side has closed or broken it.
    Over,
    /// It was lost before the first byte.
    Lost,
}

/// Forwards bytes in both directions.
async fn forward(streams: &mut UnixStream, connection: &mut UnixStream) -> Outcome {
    let mut chunk = [0; 1024];
    let length = tokio::select! {
        length = connection.read(&mut chunk) => length.unwrap_or(0),
        // The host has data to send. The agent may be gone by now.
        _ = streams.readable() => match connection.try_read(&mut chunk) {
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = copy_bidirectional(streams, connection).await;
                return Outcome::Over;
            }
            Err(_) => 0,
        },
    };
    if length == 0 {
        return Outcome::Lost;
    }
    if streams.write_all(&chunk[..length]).await.is_ok() {
        // Only the end matters, not its reason.
        let _ = copy_bidirectional(streams, connection).await;
    }
    Outcome::Over
}

/// Connects until the agent confirms it, or the deadline is reached.
async fn connected(socket: &std::path::Path, by: Option<Instant>) -> Option<UnixStream> {
    let mut pause = MIN_RETRY_INTERVAL;
    loop {
        if let Ok(Some(stream)) = timeout(CONNECT_TIMEOUT, try_connect(socket)).await {
            return Some(stream);
        }
        if by.is_some_and(|by| Instant::now() >= by) {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_RETRY_INTERVAL);
    }
}

async fn try_connect(socket: &std::path::Path) -> Option<UnixStream> {
    let mut stream = vsock::connect(socket, PORT, CONNECT_TIMEOUT).await.ok()?;
    (stream.read_u8().await.ok()? == cofferdam_guest::TAKEN).then_some(stream)
}

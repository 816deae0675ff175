//! The agent's streams, which stay what they are while the connections behind them come and go.
//!
//! ```text
//! streams <--pair--> pump <--Unix socket, CONNECT--> Firecracker <--vsock--> agent
//!
//! begun --boots--> connecting --the agent's first byte--> joined --detach--> apart --attach--> connecting
//! begun --waits-----------------------------------------------------------> apart
//! joined --lost before anybody has said anything, a while at most--> connecting
//! ```
//!
//! No connection outlives a state that is written down: both the machine that goes on and those that come from it are
//! told by their device that all connections are gone. So it is given up before, where nobody has anything to say, and
//! another one is made when the machine goes on. A connection counts only when the agent itself has said so on it. One that is
//! lost before a byte went either way is none either: the agent listens again then, and another one is made.

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
/// Time for one try.
const TRY_LIMIT: Duration = Duration::from_secs(2);
/// Time between two.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// Time from a first connection on in which others take the place of those that nobody had used.
const QUIET_LIMIT: Duration = Duration::from_secs(10);

/// What the pump is told, and where it says that it was done.
#[derive(Debug)]
enum Order {
    Detach(oneshot::Sender<()>),
    /// By this time.
    Attach(Instant, oneshot::Sender<bool>),
}

/// The connection to the agent. When it is dropped, so are the streams' other ends.
#[derive(Debug)]
pub(super) struct Channel {
    orders: mpsc::Sender<Order>,
}

/// The streams of a channel: the host's end, and the one that goes on to the socket.
pub(super) fn pair(socket: &Path) -> Result<(UnixStream, UnixStream)> {
    let made = || {
        let (ours, theirs) = Socket::pair()?;
        let stream = |socket: Socket| {
            socket.set_nonblocking(true)?;
            UnixStream::from_std(OwnedFd::from(socket).into())
        };
        Ok((stream(ours)?, stream(theirs)?))
    };
    made().map_err(|error| os("make a pair of sockets", socket, error))
}

impl Channel {
    /// Begins, and gives the streams. `boots` says that somebody inside will soon listen; else it waits to be attached.
    pub(super) fn begin(
        (ours, theirs): (UnixStream, UnixStream),
        (socket, tree): (PathBuf, Tree),
        end: watch::Receiver<Option<End>>,
        boots: bool,
    ) -> (Self, UnixStream) {
        let (orders, told) = mpsc::channel(1);
        tokio::spawn(Pump { socket, _tree: tree, streams: theirs, told, end }.run(boots));
        (Self { orders }, ours)
    }

    /// Gives the connection up. Nothing may be under way on it.
    pub(super) async fn detach(&self) {
        let (done, waits) = oneshot::channel();
        if self.orders.send(Order::Detach(done)).await.is_ok() {
            // A pump that has ended holds none.
            let _ = waits.await;
        }
    }

    /// Makes another connection, within a time.
    pub(super) async fn attach(&self, limit: Duration) -> Result<(), VmError> {
        let (done, waits) = oneshot::channel();
        let failed = |what: &str| Err(super::broken(what));
        if self.orders.send(Order::Attach(Instant::now() + limit, done)).await.is_err() {
            return failed("the connection to the machine has ended");
        }
        match waits.await {
            Ok(true) => Ok(()),
            Ok(false) => failed("nobody inside took the connection when the machine went on"),
            Err(_) => failed("the machine ended while it was connected to"),
        }
    }
}

struct Pump {
    socket: PathBuf,
    /// What the socket's path begins with, if that needs to be held.
    _tree: Tree,
    streams: UnixStream,
    told: mpsc::Receiver<Order>,
    end: watch::Receiver<Option<End>>,
}

impl Pump {
    /// Until the machine has ended, or one side of the connection has.
    async fn run(mut self, boots: bool) {
        let mut connection = None;
        let mut quiet_until = Instant::now() + QUIET_LIMIT;
        if boots {
            // How long a boot may take is for those to say who wait for the agent.
            tokio::select! {
                made = connected(&self.socket, None) => connection = made,
                _ = self.end.wait_for(Option::is_some) => return,
                // Nobody holds a machine that boots, so it is gone.
                _ = self.told.recv() => return,
            }
            quiet_until = Instant::now() + QUIET_LIMIT;
        }
        loop {
            let heard = match &mut connection {
                None => Heard::Order(self.told.recv().await),
                Some(joined) => tokio::select! {
                    order = self.told.recv() => Heard::Order(order),
                    carried = carry(&mut self.streams, joined) => Heard::End(carried),
                    _ = self.end.wait_for(Option::is_some) => return,
                },
            };
            let order = match heard {
                Heard::Order(order) => order,
                Heard::End(Carried::Lost) if Instant::now() < quiet_until => {
                    tokio::select! {
                        made = connected(&self.socket, Some(quiet_until)) => {
                            connection = made;
                            if connection.is_some() {
                                continue;
                            }
                            return;
                        }
                        order = self.told.recv() => order,
                        _ = self.end.wait_for(Option::is_some) => return,
                    }
                }
                Heard::End(_) => return,
            };
            match order {
                None => return,
                Some(Order::Detach(done)) => {
                    connection = None;
                    let _ = done.send(());
                }
                Some(Order::Attach(by, done)) => {
                    connection = tokio::select! {
                        made = connected(&self.socket, Some(by)) => made,
                        _ = self.end.wait_for(Option::is_some) => return,
                    };
                    quiet_until = Instant::now() + QUIET_LIMIT;
                    let _ = done.send(connection.is_some());
                }
            }
        }
    }
}

/// What a pump has to do next.
#[derive(Debug)]
enum Heard {
    Order(Option<Order>),
    End(Carried),
}

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carried {
    /// One side has ended it, or broken it off.
    Over,
    /// It was gone before anybody had said anything.
    Lost,
}

/// Carries bytes both ways.
async fn carry(streams: &mut UnixStream, joined: &mut UnixStream) -> Carried {
    let mut piece = [0; 1024];
    let heard = tokio::select! {
        heard = joined.read(&mut piece) => heard.unwrap_or(0),
        // Somebody has something to say, to whom there may be nobody any more.
        _ = streams.readable() => match joined.try_read(&mut piece) {
            Ok(heard) => heard,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = copy_bidirectional(streams, joined).await;
                return Carried::Over;
            }
            Err(_) => 0,
        },
    };
    if heard == 0 {
        return Carried::Lost;
    }
    if streams.write_all(&piece[..heard]).await.is_ok() {
        // Its end is all that there is to know.
        let _ = copy_bidirectional(streams, joined).await;
    }
    Carried::Over
}

/// A connection that the agent took.
async fn connected(socket: &std::path::Path, by: Option<Instant>) -> Option<UnixStream> {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(Some(stream)) = timeout(TRY_LIMIT, taken(socket)).await {
            return Some(stream);
        }
        if by.is_some_and(|by| Instant::now() >= by) {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn taken(socket: &std::path::Path) -> Option<UnixStream> {
    let mut stream = vsock::connect(socket, PORT, TRY_LIMIT).await.ok()?;
    (stream.read_u8().await.ok()? == cofferdam_guest::TAKEN).then_some(stream)
}

//! The side of the process that hands over.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Message, PROTOCOL, ended};
use crate::listen::{Listener, SocketFileOwner};

/// The time for a successor to be ready: it reads its state and sets its backends up.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A listening socket that can be handed over.
#[derive(Debug)]
pub struct Offer {
    socket: OwnedFd,
    file: Option<SocketFileOwner>,
}

/// Returns what a server hands over. `None` if one of its listeners cannot be handed over.
pub fn offers(listeners: &[Listener]) -> Result<Option<Vec<Offer>>> {
    let copy = |listener: &Listener| {
        let Some(socket) = listener.descriptor() else { return Ok(None) };
        let socket = socket.try_clone_to_owned().map_err(|error| {
            Error::new(ErrorKind::Io, "serve", "cannot copy a descriptor of a listener").with_source(error)
        })?;
        Ok(Some(Offer { socket, file: listener.file() }))
    };
    listeners.iter().map(copy).collect()
}

/// Leaves the files of sockets to a successor.
pub fn keep_files(offers: &[Offer]) {
    offers.iter().filter_map(|offer| offer.file.as_ref()).for_each(SocketFileOwner::keep);
}

/// An order to hand over.
pub struct Order {
    channel: OwnedFd,
    before_go: Box<dyn FnOnce() + Send>,
    done: oneshot::Sender<Result<()>>,
}

/// A handle of a server that serves.
#[derive(Debug, Clone)]
pub struct Control {
    orders: mpsc::Sender<Order>,
    serving: CancellationToken,
    successor: Arc<OnceLock<Successor>>,
}

impl Control {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Order>) {
        let (orders, receiver) = mpsc::channel(1);
        (Self { orders, serving: CancellationToken::new(), successor: Arc::default() }, receiver)
    }

    /// Waits until the server accepts connections.
    pub async fn serving(&self) {
        self.serving.cancelled().await;
    }

    pub(crate) fn is_serving(&self) {
        self.serving.cancel();
    }

    /// Keeps the channel to a successor open until all handles are dropped. The successor settles what this process left
    /// when the channel ends, so that the program drops its last handle when it has closed everything.
    pub(crate) fn keep(&self, successor: Successor) {
        // A server has one successor.
        let _ = self.successor.set(successor);
    }

    /// Returns true if the server was handed over or stops. Then it cannot be handed over any more.
    pub fn is_closed(&self) -> bool {
        self.orders.is_closed()
    }

    /// Hands the listening sockets over to the process at the other end of a channel, and returns when it has them. The
    /// server then ends as soon as no sandbox of it is left. `before_go` is called before the other process accepts the
    /// first connection. If the handover fails, the server serves as before.
    ///
    /// # Errors
    /// - `Conflict` while this server still has a predecessor, and if it was handed over already or stops.
    /// - `Unsupported` for a server with a private socket.
    /// - `Unavailable` if the other process ends or is not ready in time.
    pub async fn handoff(&self, channel: OwnedFd, before_go: impl FnOnce() + Send + 'static) -> Result<()> {
        let (done, outcome) = oneshot::channel();
        let order = Order { channel, before_go: Box::new(before_go), done };
        let closed = || {
            Error::new(ErrorKind::Conflict, "hand over", "this process was handed over already, or stops")
                .with_remedy("upgrade the process that has the sockets")
        };
        self.orders.send(order).await.map_err(|_| closed())?;
        outcome.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// A process that has the listening sockets.
#[derive(Debug)]
pub struct Successor(Channel);

impl Order {
    /// Refuses the order.
    pub fn refuse(self, error: Error) {
        // The caller may have left.
        let _ = self.done.send(Err(error));
    }

    /// Offers the listeners. Returns the successor once it is ready. The caller then stops accepting, and lets it go.
    pub async fn offer(self, instance: &str, offers: &[Offer]) -> Option<(Successor, Ready)> {
        let Self { channel, before_go, done } = self;
        let offered = async {
            let channel = Channel::new(channel)?;
            for Offer { socket, file } in offers {
                let removes = file.as_ref().is_some_and(|file| !file.is_retained());
                channel.send(&Message::Listener { removes }, &[socket.as_fd()]).await?;
            }
            let offer = Message::Offer { protocol: PROTOCOL, instance: instance.to_owned() };
            channel.send(&offer, &[]).await?;
            match channel.receive().await? {
                Some((Message::Ready, _)) => Ok(Successor(channel)),
                Some(_) => Err(Error::new(ErrorKind::Unavailable, "hand over", "the new process sent another message")),
                None => Err(ended("new")),
            }
        };
        let late = || Error::new(ErrorKind::Unavailable, "hand over", "the new process was not ready in time");
        match tokio::time::timeout(READY_TIMEOUT, offered).await.unwrap_or_else(|_| Err(late())) {
            Ok(successor) => Some((successor, Ready { before_go, done })),
            Err(error) => {
                let _ = done.send(Err(error));
                None
            }
        }
    }
}

/// A successor that waits for its start.
pub struct Ready {
    before_go: Box<dyn FnOnce() + Send>,
    done: oneshot::Sender<Result<()>>,
}

impl Ready {
    /// Lets the successor serve.
    pub async fn go(self, successor: &Successor) {
        (self.before_go)();
        // If it has ended meanwhile, the end of the channel is found next.
        let _ = successor.0.send(&Message::Go, &[]).await;
        let _ = self.done.send(Ok(()));
    }
}

impl Successor {
    /// Returns the next connection of the successor, or `None` after its end.
    pub async fn connection(&self) -> Option<UnixStream> {
        loop {
            match self.0.receive().await {
                Ok(Some((Message::Connection, Some(socket)))) => {
                    let stream = std::os::unix::net::UnixStream::from(socket);
                    if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)) {
                        return Some(stream);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Refuses further connections of the successor, and closes those that wait.
    pub async fn refuse_connections(&self) {
        self.0.refuse();
        while self.connection().await.is_some() {}
    }
}

//! TCP connections of guests, which the host serves, and connections of the host to guests.
//!
//! Each direction of a connection has a window of its own, so that a slow one delays no other, and no exec.

use std::io;
use std::net::SocketAddrV4;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::error;
use crate::flow::{Input, Reader};
use crate::link::Link;
use crate::slots::{ConnectionSlot, ListenerSlot, Notifier, OnRequest, Opened, ResolverQuery, Slot};
use crate::window::{Inflow, READ_WINDOW, Window};
use crate::wire::{MAX_PORTS, MAX_QUERIES, Request};

/// The maximum of connections of the host to one guest.
pub const MAX_CONNECTS: usize = 64;
/// The maximum of ports of agents that were built before [`MAX_PORTS`] was raised.
const MAX_PORTS_BEFORE: usize = 17;
/// Every policy's ports and the proxy's fit.
const _: () = assert!(MAX_PORTS == cofferdam_egress::MAX_PORTS + 1);
/// Time for a program in the sandbox to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const EADDRINUSE: i32 = 98;
const EBUSY: i32 = 16;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;

/// A connection. Dropping it closes it; bytes that were written still arrive.
pub struct Stream {
    reader: Reader,
    writer: Input,
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

/// A requested connection. Dropping it cancels the request.
struct Requested {
    stream: Stream,
    opened: oneshot::Receiver<Opened>,
}

/// Requests a connection. It keeps the permit until all its frames were written to the agent.
fn request(
    link: &Arc<Link>,
    operation: &'static str,
    request: &Request<'_>,
    permit: Option<OwnedSemaphorePermit>,
) -> Result<Requested> {
    let (notifier, opened) = Notifier::new();
    let (flow, window) = (Inflow::new(), Window::with(permit));
    let slot = ConnectionSlot { opened: notifier, flow: Arc::clone(&flow), window: Arc::clone(&window), ended: false };
    let id = link.enroll(operation, |_| Slot::Connection(slot))?;
    let reader = Reader::new(link, id, flow);
    let writer = Input::new(link, id, window);
    link.send(id, request);
    Ok(Requested { stream: Stream { reader, writer }, opened })
}

/// Waits for the next connection of a guest. Returns it with its destination.
pub async fn accept(link: &Arc<Link>, permit: Option<OwnedSemaphorePermit>) -> Result<(Stream, SocketAddrV4)> {
    const OPERATION: &str = "accept";
    let accept = Request::Accept { window: READ_WINDOW as u32 };
    let Requested { stream, opened } = request(link, OPERATION, &accept, permit)?;
    match opened.await {
        Ok(Ok(to)) => Ok((stream, to)),
        Ok(Err(errno)) => Err(Error::new(ErrorKind::ResourceExhausted, OPERATION, "cannot accept a connection")
            .with_source(io::Error::from_raw_os_error(errno))),
        Err(_) => Err(link.error(OPERATION)),
    }
}

/// Connects to a port of a guest's loopback address. Drops the operation once the request is sent.
pub async fn connect(
    link: &Arc<Link>,
    port: u16,
    permit: OwnedSemaphorePermit,
    operation: impl Sized,
) -> Result<Stream> {
    const OPERATION: &str = "connect";
    let connect = Request::Connect { port, window: READ_WINDOW as u32 };
    let Requested { stream, opened } = request(link, OPERATION, &connect, Some(permit))?;
    // A server that does not accept must not delay a snapshot.
    drop(operation);
    let refused = |what: String| Error::new(ErrorKind::Unavailable, OPERATION, what);
    match tokio::time::timeout(CONNECT_TIMEOUT, opened).await {
        Ok(Ok(Ok(_))) => Ok(stream),
        Ok(Ok(Err(EMFILE))) => {
            Err(Error::new(ErrorKind::ResourceExhausted, OPERATION, "the sandbox has too many connections"))
        }
        Ok(Ok(Err(errno))) => Err(refused(format!("no program in the sandbox listens on port {port}"))
            .with_remedy("start the server first; it must listen on 127.0.0.1 or on all addresses")
            .with_source(io::Error::from_raw_os_error(errno))),
        Ok(Err(_)) => {
            let termination = link.closed().await;
            Err(error::ended(OPERATION, termination.as_ref()))
        }
        Err(_) => Err(refused(format!("the program that listens on port {port} does not accept connections"))),
    }
}

/// The queries of a guest to its resolver.
pub struct Queries {
    link: Weak<Link>,
    id: u64,
    receiver: mpsc::Receiver<ResolverQuery>,
    requested: Arc<OnceLock<OnRequest>>,
}

impl Queries {
    /// Sets the action on each connection that a guest requests, also to ports on which the agent does not listen, if
    /// the agent sees them. It must not block, and bound what it keeps.
    pub fn on_request(&self, action: impl Fn(SocketAddrV4) + Send + Sync + 'static) {
        let _ = self.requested.set(Box::new(action));
    }

    /// Waits for the next query. Returns `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<ResolverQuery> {
        self.receiver.recv().await
    }

    /// Sends the response to a query, or none if it is empty. Waits while the agent does not read.
    pub async fn respond(&self, from: [u8; 7], data: &[u8]) -> Result<()> {
        let link = self.link.upgrade().ok_or_else(|| Error::closed("respond"))?;
        link.send_long("respond", self.id, &Request::Response { from: &from, data }).await
    }
}

/// Lets the agent listen on these ports, and as the resolver.
pub async fn listen(link: &Arc<Link>, ports: &[u16]) -> Result<Queries> {
    const OPERATION: &str = "create";
    if ports.len() > MAX_PORTS {
        return Err(Error::invalid(OPERATION, format!("a sandbox can reach at most {MAX_PORTS} different ports")));
    }
    let (queries, receiver) = mpsc::channel(MAX_QUERIES);
    let (listening, listens) = Notifier::new();
    let requested = Arc::default();
    let slot = ListenerSlot { listening, queries, requested: Arc::clone(&requested) };
    let id = link.enroll(OPERATION, |_| Slot::Listener(slot))?;
    let encoded: Vec<u8> = ports.iter().flat_map(|port| port.to_le_bytes()).collect();
    link.send(id, &Request::Listen { ports: &encoded });
    match link.wait(OPERATION, listens).await? {
        0 => Ok(Queries { link: Arc::downgrade(link), id, receiver, requested }),
        errno => {
            let error = Error::new(ErrorKind::Unavailable, OPERATION, "the agent cannot listen on the policy's ports")
                .with_source(io::Error::from_raw_os_error(errno));
            Err(match errno {
                EACCES => error.with_remedy(
                    "the sandbox's kernel reserves ports below 1024 for root: use a newer runtime, or higher ports",
                ),
                // An agent of an earlier version.
                EBUSY if ports.len() > MAX_PORTS_BEFORE => error.with_remedy(
                    "name at most 16 different ports; or rebuild the image with 'cofferdam vm build-image'",
                ),
                EADDRINUSE => error.with_remedy("create another sandbox"),
                _ => error,
            })
        }
    }
}

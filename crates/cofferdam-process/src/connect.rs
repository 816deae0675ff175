//! Connections from the owner to servers in a sandbox.
//!
//! A socket belongs to the network namespace in which it was created. So a child of the launcher creates it inside, and
//! the owner connects it, without a route or a port on the host.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cofferdam_contract::{Connection, Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;

use crate::core::Core;

/// The maximum of connections to one sandbox at the same time.
pub const MAX_CONNECTIONS: usize = 64;
/// Time for a server to let the kernel accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a port on the loopback interface of a sandbox, by IPv4 or else by IPv6.
pub async fn connect(core: &Core, port: u16) -> Result<Connection> {
    if port == 0 {
        return Err(Error::invalid("connect", "0 is not the port of a server"));
    }
    if core.policy_ports.contains(&port) {
        let message = format!("port {port} of the sandbox belongs to its network policy");
        return Err(Error::invalid("connect", message).with_remedy("let the server in the sandbox use another port"));
    }
    let permit = Arc::clone(&core.connections).try_acquire_owned().map_err(|_| {
        let message = format!("the sandbox has {MAX_CONNECTIONS} connections already");
        Error::new(ErrorKind::ResourceExhausted, "connect", message).with_remedy("close a connection first")
    })?;
    let sockets = core.launcher.sockets(core.serial).await;
    if core.is_closed() {
        return Err(Error::closed("connect"));
    }
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect_any(sockets?, port)).await;
    match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => Ok(Box::new(Connected { stream, _permit: permit })),
        Err(_) if core.is_closed() => Err(Error::closed("connect")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let message = format!("no program in the sandbox listens on port {port}");
            Err(Error::new(ErrorKind::Unavailable, "connect", message)
                .with_remedy("start a server on that port of 127.0.0.1, ::1 or all addresses"))
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let message = format!("the server on port {port} of the sandbox accepted no connection within 10 s");
            Err(Error::new(ErrorKind::Unavailable, "connect", message))
        }
        Err(error) => {
            let message = format!("cannot connect to port {port} of the sandbox");
            Err(Error::new(ErrorKind::Io, "connect", message).with_source(error))
        }
    }
}

/// Connects the first socket, and the second if no server listens on the first's address.
async fn connect_any(sockets: Vec<OwnedFd>, port: u16) -> io::Result<TcpStream> {
    let addresses = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let mut refused = None;
    for (socket, address) in sockets.into_iter().zip(addresses) {
        let socket = TcpSocket::from_std_stream(StdStream::from(socket));
        match socket.connect(SocketAddr::new(address, port)).await {
            Ok(stream) => {
                // Send small writes at once: the caller decides what to gather.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::other("the launcher sent no socket")))
}

/// A connection, counted as long as it exists.
struct Connected {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Connected {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connected {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

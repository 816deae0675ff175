//! Published ports: listeners on the host whose connections lead to servers in a sandbox.
//!
//! ```text
//! client --> Listener (address of the host) --> relay --Sandbox::connect--> server in the sandbox
//! ```
//!
//! The relay passes bytes and reads none of them, so that every protocol over TCP passes. It works with each backend
//! that declares [`Capability::Connect`](crate::Capability::Connect).

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::{Connection, Error, ErrorKind, Result, Sandbox};

/// The maximum of connections to one published port at the same time. Further ones wait in the kernel.
pub const MAX_CONNECTIONS: usize = 64;
/// The maximum of connections that wait in the kernel.
const BACKLOG: i32 = 64;
/// Time to connect to the server in the sandbox, for every backend.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for one direction of a connection to end after the other.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(600);
/// Time to pass on an answer after the way to the server broke.
const BROKEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between attempts to accept while the process lacks descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// An address on which a port is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An address and a port of TCP. Port 0 stands for any free port.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket of the host that accepts connections for a sandbox.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    socket: Socket,
    file: Option<SocketFile>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket's file, removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Listener {
    /// Listens on an address. Requires a tokio runtime with IO.
    ///
    /// The file of a Unix socket has mode 0600. Its path must not exist. It is removed when the port is no longer
    /// published.
    ///
    /// # Errors
    /// - `Conflict` if the address is in use, or the path exists.
    /// - `Denied` if this user may not use the address.
    pub fn bind(address: &Address) -> Result<Self> {
        match address {
            Address::Tcp(at) => bind_tcp(*at).map_err(|error| not_bound(address, error)),
            Address::Unix(path) => bind_unix(path).map_err(|error| not_bound(address, error)),
        }
    }

    /// Returns the address, with the selected port in place of port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<Listener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = new_socket(family)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let socket = TcpListener::from_std(StdTcpListener::from(socket))?;
    Ok(Listener { address: Address::Tcp(socket.local_addr()?), socket: Socket::Tcp(socket), file: None })
}

fn bind_unix(path: &Path) -> io::Result<Listener> {
    let path = std::path::absolute(path)?;
    let socket = new_socket(AddressFamily::UNIX)?;
    // The kernel creates the file with the mode of the socket.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
    let metadata = std::fs::symlink_metadata(&path)?;
    let file = SocketFile { path: path.clone(), identity: (metadata.dev(), metadata.ino()) };
    rustix::net::listen(&socket, BACKLOG)?;
    let socket = UnixListener::from_std(StdUnixListener::from(socket))?;
    Ok(Listener { address: Address::Unix(path), socket: Socket::Unix(socket), file: Some(file) })
}

fn new_socket(family: AddressFamily) -> io::Result<std::os::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

fn not_bound(address: &Address, error: io::Error) -> Error {
    let (kind, why, remedy) = match (error.kind(), address) {
        (io::ErrorKind::AddrInUse, Address::Tcp(_)) => {
            (ErrorKind::Conflict, "the address is in use", "use another port; port 0 selects a free one")
        }
        (io::ErrorKind::AddrInUse, Address::Unix(_)) => {
            (ErrorKind::Conflict, "the file exists", "remove it if no program uses it, or name another path")
        }
        (io::ErrorKind::PermissionDenied, Address::Tcp(_)) => {
            (ErrorKind::Denied, "this user may not use the port", "use a port from 1024 on")
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            (ErrorKind::InvalidInput, "this host does not have the address", "use 127.0.0.1 or ::1")
        }
        (_, Address::Unix(_)) => {
            (ErrorKind::Io, "the socket cannot be created", "use a short path in a directory that exists")
        }
        (_, Address::Tcp(_)) => (ErrorKind::Io, "the socket cannot be created", "use another address"),
    };
    let failed = Error::new(kind, "publish", format!("cannot listen on {address}: {why}")).with_remedy(remedy);
    // The other kinds say the same as the system's error.
    if kind == ErrorKind::Io { failed.with_source(error) } else { failed }
}

impl Socket {
    async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A relay must not delay small writes.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Connections that failed because the sandbox accepted none.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    last: Option<String>,
}

/// A published port. Dropping it ends all its connections.
#[derive(Debug)]
pub struct Published {
    address: Address,
    port: u16,
    task: JoinHandle<()>,
    finishing: watch::Sender<bool>,
    failures: Arc<Mutex<Failures>>,
    /// Held here, so that the file is gone when the drop returns.
    _file: Option<SocketFile>,
}

/// Passes each connection of a listener to a port on the loopback interface of a sandbox. Must be called in a tokio
/// runtime. The published port does not keep the sandbox alive.
///
/// - A client whose connection the sandbox does not accept is disconnected.
/// - At most [`MAX_CONNECTIONS`] are open at the same time. Backends have their own limit for each sandbox.
/// - When one side sends no more, the other may continue for ten minutes.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use cofferdam::publish::{Address, Listener, publish};
/// # async fn example(sandbox: Arc<dyn cofferdam::Sandbox>) -> cofferdam::Result<()> {
/// let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into()))?;
/// let published = publish(&sandbox, listener, 8000);
/// println!("http://{}/", published.address());
/// # Ok(())
/// # }
/// ```
pub fn publish(sandbox: &Arc<dyn Sandbox>, listener: Listener, port: u16) -> Published {
    let Listener { address, socket, file } = listener;
    let (finishing, finish) = watch::channel(false);
    let failures = Arc::new(Mutex::new(Failures::default()));
    let relay = Relay { sandbox: Arc::downgrade(sandbox), port, finish };
    let task = tokio::spawn(serve(socket, relay, Arc::clone(&failures)));
    Published { address, port, task, finishing, failures, _file: file }
}

impl Published {
    /// Returns the address of the host.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the port in the sandbox.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a printable summary of the connections that the sandbox did not accept, if there were any.
    pub fn failures(&self) -> Option<String> {
        let failures = self.failures.lock();
        let last = failures.last.as_ref()?;
        Some(format!("{} of the connections to {} failed; the last one: {last}", failures.count, self.address))
    }

    /// Accepts no more connections, and passes on what the sandbox has sent to its connections already. Call it once
    /// the sandbox is closed. Ends all connections after `limit`.
    pub async fn finish(mut self, limit: Duration) {
        self.finishing.send_replace(true);
        let _ = timeout(limit, &mut self.task).await;
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The way from a listener into a sandbox.
#[derive(Debug, Clone)]
struct Relay {
    sandbox: Weak<dyn Sandbox>,
    port: u16,
    /// True once the published port ends.
    finish: watch::Receiver<bool>,
}

/// Accepts connections until the sandbox is closed or the published port ends, then waits for those that are open.
async fn serve(socket: Socket, relay: Relay, failures: Arc<Mutex<Failures>>) {
    let mut finish = relay.finish.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = is_true(&mut finish) => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => match ended {
                Ok(Err(error)) if is_closed(&error) => break,
                Ok(Err(error)) => {
                    let mut failures = failures.lock();
                    failures.count += 1;
                    failures.last = Some(error.to_string());
                }
                // A panic ends one connection only.
                Ok(Ok(())) | Err(_) => {}
            },
            accepted = socket.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok(client) => drop(connections.spawn(relay.clone().pass(client))),
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            },
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

/// Waits until the value is true or its sender is dropped.
async fn is_true(value: &mut watch::Receiver<bool>) {
    let _ = value.wait_for(|value| *value).await;
}

fn is_closed(error: &Error) -> bool {
    error.kind() == ErrorKind::Closed
}

impl Relay {
    /// Connects a client to the server in the sandbox. Fails if the sandbox does not accept the connection.
    async fn pass(mut self, client: Connection) -> Result<()> {
        let guest = {
            let sandbox = self.sandbox.upgrade().ok_or_else(|| Error::closed("connect"))?;
            let connected = timeout(CONNECT_TIMEOUT, sandbox.connect(self.port)).await;
            connected.map_err(|_| {
                let message = format!("the sandbox accepted no connection to port {} within 30 s", self.port);
                Error::new(ErrorKind::Unavailable, "connect", message)
            })??
        };
        let (from_client, to_client) = tokio::io::split(client);
        let (from_guest, to_guest) = tokio::io::split(guest);
        let up = async {
            tokio::select! {
                copied = copy(from_client, to_guest) => copied,
                // The sandbox has ended and reads no more.
                () = is_true(&mut self.finish) => Ok(()),
            }
        };
        let down = copy(from_guest, to_client);
        tokio::pin!(up, down);
        tokio::select! {
            sent = &mut up => {
                // A server may answer and close before it has read everything.
                let limit = if sent.is_ok() { HALF_CLOSED_TIMEOUT } else { BROKEN_TIMEOUT };
                let _ = timeout(limit, down).await;
            }
            received = &mut down => {
                if received.is_ok() {
                    let _ = timeout(HALF_CLOSED_TIMEOUT, up).await;
                }
            }
        }
        Ok(())
    }
}

/// Copies one direction until it ends, and passes on its end.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

//! The gateway of one sandbox: it serves the sockets that are the sandbox's only way out.
//!
//! The sockets are in the network namespace of the sandbox, and this process holds them. Every connection to a synthetic
//! or listed address arrives here with its destination as local address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional, join};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::denials::{Denial, Denials};
use crate::names::Names;
use crate::rules::{Query, Refusal, Rules, Target};
use crate::sniff::{MAX_FIRST, Protocol, is_tls, protocol};
use crate::upstream::{Failure, MAX_LOOKUPS};
use crate::{dns, http, upstream};

/// The maximum of connections of one sandbox. Further ones are closed: no limit counts the memory of a connection that
/// waits to be accepted.
const MAX_CONNECTIONS: usize = 128;
/// The maximum of connections to the resolver at once, and the length of a query.
const MAX_DNS_CONNECTIONS: usize = 8;
const MAX_QUERY: usize = 4096;
/// Time in which a client must complete what it has begun: its first message, or a query.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait if no connection can be accepted, for example because descriptors are exhausted.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The sockets of a sandbox, in its network namespace.
#[derive(Debug)]
pub struct Sockets {
    /// Listening sockets for connections.
    pub listeners: Vec<OwnedFd>,
    /// The resolver's socket for datagrams.
    pub resolver: OwnedFd,
    /// The resolver's listening socket.
    pub resolver_listener: OwnedFd,
}

/// A running gateway. Dropping it closes its sockets and every connection.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    rules: Rules,
    names: Mutex<Names>,
    denials: Arc<Denials>,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// Where a connection goes.
#[derive(Debug, Clone)]
enum Destination {
    Name(Arc<Target>, u16),
    Address(SocketAddr),
}

impl Gateway {
    /// Starts the gateway. Must be called in a tokio runtime with IO and time enabled.
    pub fn start(sockets: Sockets, rules: Rules) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            rules,
            names: Mutex::default(),
            denials: Arc::default(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        });
        let mut tasks = JoinSet::new();
        for listener in sockets.listeners {
            tasks.spawn(accept(self::listener(listener)?, Arc::clone(&shared)));
        }
        let resolver = std::net::UdpSocket::from(sockets.resolver);
        resolver.set_nonblocking(true)?;
        tasks.spawn(answer(UdpSocket::from_std(resolver)?, Arc::clone(&shared)));
        tasks.spawn(answer_connections(listener(sockets.resolver_listener)?, Arc::clone(&shared)));
        Ok(Self { shared, tasks: Mutex::new(tasks) })
    }

    /// Closes all sockets and connections, without waiting.
    pub fn shut(&self) {
        self.tasks.lock().abort_all();
    }

    /// Closes all sockets and connections, and waits until that is done.
    pub async fn close(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }

    /// Returns what was refused so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.shared.denials.list()
    }
}

fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let port = listener.local_addr().map_or(0, |address| address.port());
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&shared.connections).try_acquire_owned() else {
            let why = format!("there are {MAX_CONNECTIONS} connections");
            shared.denials.note(format_args!("further connections to port {port}"), why);
            continue;
        };
        while connections.try_join_next().is_some() {}
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let _permit = permit;
            serve(client, shared).await;
        });
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let Ok(to) = client.local_addr() else { return };
    match shared.destination(to) {
        Ok(destination) => relay(client, &destination, &shared).await,
        Err((name, refusal)) => {
            shared.denials.note(format_args!("the connection to {name}:{}", to.port()), refusal);
        }
    }
}

async fn relay(mut client: TcpStream, destination: &Destination, shared: &Shared) {
    let _ = client.set_nodelay(true);
    let connected = match destination {
        Destination::Name(target, port) => upstream::connect(target, *port, &shared.lookups).await,
        Destination::Address(address) => upstream::to(address.ip(), address.port()).await,
    };
    let mut server = match connected {
        Ok(server) => server,
        Err(failure) => {
            if let Failure::Denied(refusal) = failure {
                shared.denials.note(format_args!("the connection to {destination}"), refusal);
            }
            return;
        }
    };
    let mut first = Vec::new();
    let Some(protocol) = recognise(&mut client, &server, &mut first).await else {
        shared.denials.note(format_args!("the connection to {destination}"), "its first message was never complete");
        return;
    };
    if let Destination::Name(target, port) = destination {
        let denied = match &protocol {
            Protocol::Tls(Some(name)) if !is_same_name(name, &target.name) => format!("TLS asks for {name}"),
            Protocol::InvalidTls => "its first message is invalid TLS".to_owned(),
            Protocol::Http2 => "HTTP/2 without TLS is not supported".to_owned(),
            Protocol::Http => {
                let (reader, writer) = client.into_split();
                let client = join(io::Cursor::new(first).chain(reader), writer);
                let route =
                    http::Route { target: Arc::clone(target), port: *port, denials: Arc::clone(&shared.denials) };
                return http::serve(client, server, route).await;
            }
            Protocol::Tls(_) | Protocol::Other => String::new(),
        };
        if !denied.is_empty() {
            shared.denials.note(format_args!("the connection to {destination}"), denied);
            return;
        }
    }
    if server.write_all(&first).await.is_ok() {
        // An error belongs to one of the two sides, which see it.
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// Reads the client's first bytes until they show the protocol. If the server sends first, it is none that is checked.
/// Returns `None` if the client does not complete its first message.
async fn recognise(client: &mut TcpStream, server: &TcpStream, first: &mut Vec<u8>) -> Option<Protocol> {
    tokio::select! {
        biased;
        read = client.read_buf(first) => {
            if !matches!(read, Ok(1..)) {
                return Some(Protocol::Other);
            }
        }
        _ = server.readable() => return Some(Protocol::Other),
    }
    let complete = async {
        loop {
            if let Some(protocol) = protocol(first) {
                return Some(protocol);
            }
            if first.len() > MAX_FIRST {
                return None;
            }
            match client.read_buf(first).await {
                Ok(1..) => {}
                // The client sends no more: what it sent is no request.
                Ok(0) if !is_tls(first) => return Some(Protocol::Other),
                _ => return None,
            }
        }
    };
    timeout(FIRST_TIMEOUT, complete).await.ok().flatten()
}

fn is_same_name(asked: &str, name: &str) -> bool {
    asked.strip_suffix('.').unwrap_or(asked).eq_ignore_ascii_case(name)
}

impl Shared {
    /// Returns the destination of a connection by its local address. Returns the name or address and the reason if the
    /// rules do not allow it.
    fn destination(&self, to: SocketAddr) -> Result<Destination, (String, Refusal)> {
        let name = match to.ip() {
            IpAddr::V4(address) => self.names.lock().name(address).map(str::to_owned),
            IpAddr::V6(_) => None,
        };
        let Some(name) = name else {
            return match self.rules.connect([], to) {
                Ok(_) => Ok(Destination::Address(to)),
                Err(refusal) => Err((to.ip().to_string(), refusal)),
            };
        };
        match self.rules.lookup(&name) {
            Ok(Query::Name(target)) if target.has_port(to.port()) => Ok(Destination::Name(target, to.port())),
            Ok(_) => Err((name, Refusal::OtherPort)),
            Err(refusal) => Err((name, refusal)),
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(target, port) => write!(f, "{}:{port}", target.name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

async fn answer(socket: UdpSocket, shared: Arc<Shared>) {
    let mut query = [0; MAX_QUERY];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut query).await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        if let Some(response) = shared.answer(&query[..length]) {
            let _ = socket.send_to(&response, from).await;
        }
        tokio::task::consume_budget().await;
    }
}

async fn answer_connections(listener: TcpListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(MAX_DNS_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((client, _)) = listener.accept().await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let _permit = permit;
            let _ = timeout(FIRST_TIMEOUT, answer_connection(client, &shared)).await;
        });
    }
}

async fn answer_connection(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let length = usize::from(client.read_u16().await?);
        if length > MAX_QUERY {
            return Ok(());
        }
        let mut query = vec![0; length];
        client.read_exact(&mut query).await?;
        let Some(response) = shared.answer(&query) else { return Ok(()) };
        let Ok(length) = u16::try_from(response.len()) else { return Ok(()) };
        client.write_all(&[&length.to_be_bytes()[..], &response].concat()).await?;
    }
}

impl Shared {
    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        dns::answer(query, &self.rules, &mut self.names.lock(), &self.denials)
    }
}

//! The gateway of one sandbox: it serves the sockets that are the sandbox's only way out.
//!
//! The sockets are in the network namespace of the sandbox, and this process holds them. Every connection to a synthetic
//! or listed address arrives here with its destination as local address.

mod refused;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cofferdam_contract::{Connection, NetworkDenial, NetworkEvent, NetworkSecret, NetworkUsage};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::access::Access;
use crate::addresses::is_exhausted;
use crate::connection_attempts::ConnectionAttempts;
use crate::first_bytes::{FIRST_TIMEOUT, FirstBytes, recognise};
use crate::flow::{Flow, Metered, PolicyEnforcer, copy};
use crate::inspect::Inspected;
use crate::intercept::{self, Interception};
use crate::names::{FIRST_NAME, Names};
use crate::pace::Pace;
use crate::proxy::{self, Wanted};
use crate::rules::{Content, Query, Refusal, Rules, Server, Target};
use crate::secrets::Secrets;
use crate::share::{Permit, Share};
use crate::sniff::{Protocol, is_unchecked_answer};
use crate::upstream::{Failure, Upstream, keep_alive};
use crate::{PROXY_PORT, RESOLVER, Reach, dns, http};

/// The maximum of connections to the resolver at once.
const MAX_DNS_CONNECTIONS: usize = 8;
/// Time for the first byte of a connection, from the client or the server. A connection that is silent for longer ends.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time to wait if no connection can be accepted, for example because descriptors are exhausted.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The reason if this process has no descriptor for a connection.
const EXHAUSTED: &str = "this process has no free descriptor; raise its limit of open files (ulimit -n)";
/// The reason if a connection is closed because of the number of others.
const TOO_MANY: &str = "too many are open";
/// Ports that allow this protocol only.
const HTTP: u16 = 80;
const HTTPS: u16 = 443;
const DNS: u16 = 53;

/// The sockets of a sandbox, in its network namespace.
#[derive(Debug)]
pub struct Sockets {
    /// Listening sockets for connections.
    pub listeners: Vec<OwnedFd>,
    /// The resolver's socket for datagrams.
    pub resolver: OwnedFd,
    /// The resolver's listening socket.
    pub resolver_listener: OwnedFd,
    /// A raw socket that shows connection attempts to other ports. Without one, their refusals are not reported.
    pub connection_attempts: Option<OwnedFd>,
}

/// A running gateway. Dropping it closes its sockets and every connection.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    enforcer: Arc<PolicyEnforcer>,
    names: Mutex<Names>,
    secrets: Option<Arc<Secrets>>,
    /// The secrets as the policy has them.
    declared: Vec<NetworkSecret>,
    interception: Option<Interception>,
    /// The address of the resolver and the proxy.
    own: Ipv4Addr,
    connections: Share,
    upstream: Upstream,
    /// The connection attempts to ports that the gateway does not serve.
    connection_attempts: OnceLock<ConnectionAttempts>,
}

/// The server of a connection.
#[derive(Debug, Clone)]
enum Destination {
    Name(Arc<Target>, u16),
    Address(SocketAddr),
}

impl Gateway {
    /// Starts the gateway. Must be called in a tokio runtime with IO and time enabled.
    pub fn start(sockets: Sockets, access: Access) -> io::Result<Self> {
        let shared = Shared::new(access, (RESOLVER, FIRST_NAME), Reach::Addresses);
        let (closing, closed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut served = vec![SocketAddrV4::new(RESOLVER, DNS)];
        for listener in sockets.listeners {
            let listener = self::listener(listener)?;
            if let SocketAddr::V4(address) = listener.local_addr()? {
                served.push(address);
            }
            tasks.spawn(accept(listener, Arc::clone(&shared), closed.clone()));
        }
        if let Some(socket) = sockets.connection_attempts {
            shared.watch_connection_attempts(ConnectionAttempts::new(socket, served)?, closed.clone(), &mut tasks);
        }
        let resolver = std::net::UdpSocket::from(sockets.resolver);
        resolver.set_nonblocking(true)?;
        tasks.spawn(until(closed.clone(), answer(UdpSocket::from_std(resolver)?, Arc::clone(&shared))));
        let listener = listener(sockets.resolver_listener)?;
        tasks.spawn(answer_connections(listener, Arc::clone(&shared), closed));
        Ok(Self { shared, closing, tasks: tokio::sync::Mutex::new(tasks) })
    }

    /// Creates a gateway without sockets, for a sandbox whose connections and queries arrive by another way. Its resolver
    /// has the address `resolver`, and names get the addresses from `first_name` on. Its policy has names only.
    pub fn without_sockets(access: Access, resolver: Ipv4Addr, first_name: Ipv4Addr) -> Self {
        let (closing, _) = watch::channel(false);
        let shared = Shared::new(access, (resolver, first_name), Reach::Names);
        Self { shared, closing, tasks: tokio::sync::Mutex::default() }
    }

    /// Serves a connection of the sandbox to an address, until it ends or the gateway closes. Port 53 of a loopback address is the
    /// resolver's.
    pub async fn serve<S>(&self, client: S, to: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(permit) = self.shared.permit(to) else { return };
        let displaced = permit.displaced();
        let serving = async {
            match to.port() {
                DNS if to.ip().is_loopback() => {
                    drop(timeout(FIRST_TIMEOUT, answer_connection(client, &self.shared)).await)
                }
                _ => serve(client, to, Arc::clone(&self.shared), displaced).await,
            }
        };
        until(self.closing.subscribe(), self.shared.hold(permit, to.port(), serving)).await;
    }

    /// Answers a query of the sandbox to its resolver. Returns `None` if it is not answered at all.
    pub fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.shared.answer(query)
    }

    /// Begins to close all sockets and connections, without waiting.
    pub fn shut(&self) {
        self.shared.refuse_arrived();
        self.closing.send_replace(true);
    }

    /// Closes all sockets and connections, and waits until that is done.
    pub async fn close(&self) {
        self.shut();
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
    }

    /// Returns what was refused so far.
    pub fn denials(&self) -> Vec<NetworkDenial> {
        self.shared.refuse_arrived();
        self.shared.enforcer.denials.list()
    }

    /// Returns what the sandbox has used so far.
    pub fn usage(&self) -> NetworkUsage {
        self.shared.refuse_arrived();
        self.shared.enforcer.usage()
    }

    /// Replaces the rules. Connections that the new ones do not allow are closed.
    pub fn set_rules(&self, rules: Rules) {
        self.shared.enforcer.set_rules(rules);
    }

    /// Returns true if the sandbox was created with these secrets.
    pub fn has_secrets(&self, secrets: &[NetworkSecret]) -> bool {
        self.shared.declared == secrets
    }

    /// Returns true if the sandbox trusts an authority of the gateway.
    pub fn intercepts(&self) -> bool {
        self.shared.interception.is_some()
    }

    /// Returns a receiver of an event for each connection and request from now on.
    pub fn events(&self) -> broadcast::Receiver<NetworkEvent> {
        self.shared.enforcer.events()
    }
}

fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Runs work until the gateway closes.
async fn until(mut closed: watch::Receiver<bool>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        _ = closed.wait_for(|closed| *closed) => {}
    }
}

/// Serves a listening socket until the gateway closes, and then waits for the end of its connections.
async fn accept(listener: TcpListener, shared: Arc<Shared>, closed: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    until(closed, accept_into(&mut connections, &listener, &shared)).await;
    connections.shutdown().await;
}

async fn accept_into(connections: &mut JoinSet<()>, listener: &TcpListener, shared: &Arc<Shared>) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    let mut pace = Pace::of_connections();
    loop {
        pace.turn().await;
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                if is_exhausted(&error) {
                    shared.enforcer.denials.note(format_args!("further connections to port {port}"), EXHAUSTED);
                }
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Ok(to) = client.local_addr() else { continue };
        if let Some(permit) = shared.permit(to) {
            let _ = client.set_nodelay(true);
            keep_alive(&client);
            let shared = Arc::clone(shared);
            connections.spawn(async move {
                let serving = serve(client, to, Arc::clone(&shared), permit.displaced());
                shared.hold(permit, port, serving).await;
            });
        }
    }
}

async fn serve<S>(client: S, to: SocketAddr, shared: Arc<Shared>, displaced: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if to == SocketAddr::from((shared.own, PROXY_PORT)) {
        return serve_proxy(Box::new(client), &shared, displaced).await;
    }
    match shared.destination(to) {
        Ok(destination) => {
            let flow = shared.flow(&destination, displaced);
            follow(client, &destination, &shared, flow).await;
        }
        Err((name, refusal)) => drop(shared.refused(&name, to.port(), refusal).refuse(refusal)),
    }
}

/// Serves a client that names its server by a protocol of proxies.
async fn serve_proxy(client: Connection, shared: &Shared, displaced: Arc<AtomicBool>) {
    let Ok(Some((wanted, request))) = timeout(FIRST_TIMEOUT, proxy::read(client)).await else { return };
    let destination = match wanted {
        Wanted::Name(name, port) => shared.named(name, port).map_err(|(name, refusal)| (name, port, refusal)),
        Wanted::Address(to) => shared.destination(to).map_err(|(name, refusal)| (name, to.port(), refusal)),
    };
    match destination {
        Ok(destination) => {
            let flow = shared.flow(&destination, displaced);
            if let Ok(Some(client)) = timeout(FIRST_TIMEOUT, request.accept()).await {
                follow(client, &destination, shared, flow).await;
            }
        }
        Err((name, port, refusal)) => {
            let why = shared.refused(&name, port, refusal).refuse(refusal);
            let _ = timeout(FIRST_TIMEOUT, request.refuse(&why)).await;
        }
    }
}

/// Relays a connection until it ends, is silent for too long or is no longer allowed by the policy.
async fn follow<S>(client: S, destination: &Destination, shared: &Shared, flow: Arc<Flow>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let metered = Metered::new(client, Arc::clone(&flow));
    tokio::select! {
        () = relay(metered, destination, shared, &flow) => {}
        () = flow.revoked() => {}
        () = flow.silent(SILENCE_TIMEOUT) => flow.deny("neither side sent anything for too long"),
    }
}

async fn relay<S>(mut client: S, destination: &Destination, shared: &Shared, flow: &Arc<Flow>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if shared.enforcer.rules().is_learning() {
        return flow.deny(Refusal::Learning);
    }
    if !flow.may_be_allowed() {
        return flow.deny(Refusal::NotListed);
    }
    let connected = match destination {
        Destination::Name(target, port) => shared.upstream.connect(target, *port, &shared.enforcer.rules()).await,
        Destination::Address(to) => shared.upstream.connect_literal(*to, &shared.enforcer.rules()).await,
    };
    let mut server = match connected {
        Ok(server) => server,
        Err(Failure::Denied(refusal)) => return flow.deny(refusal),
        Err(Failure::Exhausted) => return flow.deny(EXHAUSTED),
        Err(Failure::Unreachable) => return flow.set_unreachable(),
    };
    *flow.address.lock() = server.peer_addr().ok().map(|address| address.ip());
    let Destination::Name(target, port) = destination else {
        match flow.admit(Content::Any) {
            // An error belongs to one of the two sides, which see it.
            Ok(()) => drop(copy(&mut client, &mut server).await),
            Err(why) => flow.deny(why),
        }
        return;
    };
    let (mut first, mut greeting) = (Vec::new(), Vec::new());
    let begun = match *port {
        HTTP => FirstBytes::Client(Protocol::Http),
        _ => recognise(&mut client, &server, &mut first, &mut greeting).await,
    };
    let protocol = match begun {
        FirstBytes::Client(protocol) => protocol,
        FirstBytes::Server => Protocol::Other,
        FirstBytes::Incomplete => return flow.deny("its first message was never complete"),
        FirstBytes::Closed => return,
    };
    let denials = Arc::clone(&shared.enforcer.denials);
    let secrets = shared.secrets.clone();
    let route = http::Route { target: Arc::clone(target), port: *port, denials, secrets, flow: Some(Arc::clone(flow)) };
    match protocol {
        Protocol::Tls(Some(name)) if is_same_name(&name, &target.name) => match shared.interception(target, *port) {
            Some(interception) => {
                flow.set_secure();
                intercept::serve(client, first, server, route, interception).await;
            }
            None => {
                if let Err(why) = flow.admit(Content::Tls) {
                    return flow.deny(why);
                }
                flow.paced().await;
                if server.write_all(&first).await.is_ok() {
                    drop(copy(&mut client, &mut server).await);
                }
            }
        },
        Protocol::Tls(Some(name)) => flow.deny(format_args!("TLS asks for {name}")),
        Protocol::Tls(None) => flow.deny("TLS asks for no name"),
        Protocol::InvalidTls => flow.deny("its first message is invalid TLS"),
        _ if *port == HTTPS => flow.deny("it is not TLS"),
        Protocol::Http2 => flow.deny("HTTP/2 without TLS is not supported"),
        Protocol::Http => http::serve(proxy::replayed(client, first), server, route).await,
        Protocol::Other => {
            if is_unchecked_answer(&greeting) {
                return flow.deny("the server speaks HTTP/2 or TLS without a request");
            }
            if let Err(why) = flow.admit(Content::Any) {
                return flow.deny(why);
            }
            flow.paced().await;
            if client.write_all(&greeting).await.is_err() || server.write_all(&first).await.is_err() {
                return;
            }
            let copied = copy(&mut client, &mut Inspected::new(server, &greeting)).await;
            if copied.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) {
                flow.deny("the server speaks HTTP or TLS, and the first message of the client was neither");
            }
        }
    }
}

fn is_same_name(queried: &str, name: &str) -> bool {
    queried.strip_suffix('.').unwrap_or(queried).eq_ignore_ascii_case(name)
}

impl Shared {
    fn new(access: Access, (own, first_name): (Ipv4Addr, Ipv4Addr), reach: Reach) -> Arc<Self> {
        let Access { rules, secrets, declared, interception } = access;
        Arc::new(Self {
            enforcer: Arc::new(PolicyEnforcer::new(rules, reach)),
            names: Mutex::new(Names::new(first_name)),
            secrets,
            declared,
            interception,
            own,
            connections: Share::of_process(),
            upstream: Upstream::default(),
            connection_attempts: OnceLock::new(),
        })
    }

    /// Returns the means to intercept TLS to a server, if its requests must be seen.
    fn interception(&self, target: &Target, port: u16) -> Option<&Interception> {
        let secret = self.secrets.as_ref().is_some_and(|secrets| secrets.has_host(&target.name, port));
        let needed = secret || self.enforcer.rules().needs_interception(Server::Name(&target.name), port);
        self.interception.as_ref().filter(|_| needed)
    }

    /// Returns the state of a new connection.
    fn flow(&self, destination: &Destination, displaced: Arc<AtomicBool>) -> Arc<Flow> {
        let (host, literal, port) = match destination {
            Destination::Name(target, port) => (target.name.clone(), None, *port),
            Destination::Address(to) => (to.ip().to_string(), Some(to.ip()), to.port()),
        };
        Flow::new(&self.enforcer, host, literal, port, displaced)
    }

    /// Returns the state of a connection that is refused at once.
    fn refused(&self, name: &str, port: u16, refusal: Refusal) -> Arc<Flow> {
        // Not a text of the guest's choice.
        let name = if refusal == Refusal::InvalidName { "an invalid name" } else { name };
        Flow::new(&self.enforcer, name.to_owned(), name.parse().ok(), port, Arc::default())
    }

    /// Returns the permit of one more connection to an address. Returns `None`, and reports it, if there are too many.
    fn permit(&self, to: SocketAddr) -> Option<Permit> {
        let permit = self.connections.open();
        if permit.is_none() {
            self.enforcer.denials.note(format_args!("further connections to port {}", to.port()), TOO_MANY);
            let name = self.name(to.ip());
            let literal = name.is_none().then_some(to.ip());
            let host = name.unwrap_or_else(|| to.ip().to_string());
            Flow::new(&self.enforcer, host, literal, to.port(), Arc::default()).set_refused(TOO_MANY);
        }
        permit
    }

    /// Returns the name that an address of the sandbox stands for.
    fn name(&self, address: IpAddr) -> Option<String> {
        match address {
            IpAddr::V4(address) => self.names.lock().name(address).map(str::to_owned),
            IpAddr::V6(_) => None,
        }
    }

    /// Serves a connection until it ends or another sandbox needs its place.
    async fn hold(&self, permit: Permit, port: u16, serving: impl Future<Output = ()>) {
        if !permit.hold(serving).await {
            self.enforcer.note_displaced(port);
        }
    }

    /// Returns the destination of a connection by its local address. Returns the name or address and the reason if the
    /// rules do not allow it.
    fn destination(&self, to: SocketAddr) -> Result<Destination, (String, Refusal)> {
        if let Some(name) = self.name(to.ip()) {
            return self.named(name, to.port());
        }
        match self.enforcer.rules().connect([], to) {
            // A rule for such a range is about names that lead there. Any IPv4 address has a form in it.
            Ok(_) if to.ip().is_ipv6() => Err((to.ip().to_string(), Refusal::NotLookedUp)),
            Ok(_) => Ok(Destination::Address(to)),
            Err(refusal) => Err((to.ip().to_string(), refusal)),
        }
    }

    /// Returns the destination of a connection to a name.
    fn named(&self, name: String, port: u16) -> Result<Destination, (String, Refusal)> {
        match self.enforcer.rules().lookup(&name) {
            Ok(Query::Name(target)) if target.has_port(port) => Ok(Destination::Name(target, port)),
            Ok(_) => Err((name, Refusal::OtherPort)),
            Err(refusal) => Err((name, refusal)),
        }
    }

    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        dns::answer(query, &self.enforcer.rules(), &self.names, &self.enforcer.denials)
    }
}

async fn answer(socket: UdpSocket, shared: Arc<Shared>) {
    let (mut query, mut pace) = ([0; dns::MAX_QUERY + 1], Pace::of_queries());
    loop {
        let Ok((length, from)) = socket.recv_from(&mut query).await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        if let Some(response) = shared.answer(&query[..length]) {
            let _ = socket.send_to(&response, from).await;
        }
        // A guest that floods the resolver must not keep this process from its other work.
        pace.turn().await;
    }
}

async fn answer_connections(listener: TcpListener, shared: Arc<Shared>, closed: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let serving = async {
        let permits = Arc::new(Semaphore::new(MAX_DNS_CONNECTIONS));
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
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
    };
    until(closed, serving).await;
    connections.shutdown().await;
}

async fn answer_connection(mut client: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) -> io::Result<()> {
    let mut pace = Pace::of_queries();
    loop {
        let length = usize::from(client.read_u16().await?);
        if length > dns::MAX_QUERY {
            return Ok(());
        }
        let mut query = vec![0; length];
        client.read_exact(&mut query).await?;
        let Some(response) = shared.answer(&query) else { return Ok(()) };
        let Ok(length) = u16::try_from(response.len()) else { return Ok(()) };
        client.write_all(&[&length.to_be_bytes()[..], &response].concat()).await?;
        pace.turn().await;
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::NetworkPolicy;
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    /// Promise (Network): A connection on which neither side sends anything ends after a while.
    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_ends() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
        let to = listener.local_addr().expect("an address");
        let policy = NetworkPolicy::Allow { hosts: vec![to.to_string()] };
        let rules = Rules::of(&policy).expect("a policy").unwrap_or_default();
        let access = Access::of(&policy, rules).await.expect("access");
        let gateway = Gateway::without_sockets(access, RESOLVER, FIRST_NAME);
        let (_guest, client) = duplex(64);
        let begun = Instant::now();
        gateway.serve(client, to).await;
        assert_eq!(begun.elapsed().as_secs(), SILENCE_TIMEOUT.as_secs());
        assert!(gateway.denials()[0].why.contains("neither side sent anything"));

        let (mut guest, client) = duplex(64);
        guest.write_all(b"x").await.expect("written");
        let served = timeout(2 * SILENCE_TIMEOUT, gateway.serve(client, to)).await;
        assert!(served.is_err(), "a connection that was used stays open");
    }
}

//! Many clients over streamable HTTP: one address, one path.
//!
//! ```text
//! connection -> path -> token -> room -> Host and Origin -> the SDK: a session, or a request of its own
//! ```

mod body;
mod connections;
mod guard;
mod sessions;
mod stall;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::Server;
use crate::handler::Handler;
use body::{Answering, Timed};
pub(crate) use connections::Client;
use connections::{Connection, Connections, NoRoom};
pub use guard::Token;
use sessions::{ASKED, Asked, Sessions};
use stall::Stalling;

/// The path that is served.
pub const PATH: &str = "/mcp";
/// How long a connection may be without a request that has the token.
const NEW_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the head of a later request may take, and how long a connection may be without one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a write may wait for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most headers of a request, and the most bytes of its head.
const MAX_HEADERS: usize = 64;
const MAX_HEAD: usize = 64 * 1024;
/// How long answers may take to be brought to their end when the server ends.
const DRAIN: Duration = Duration::from_secs(5);
/// How long sandboxes may take to close.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it waits after a connection could not be taken, as when there are no descriptors left.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Where the server listens, and to whom.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Where it listens.
    pub address: SocketAddr,
    /// What clients must present; needed where not only this machine can connect.
    pub token: Option<Token>,
    /// Names of this server in requests, besides those of this machine and the address.
    pub hosts: Vec<String>,
    /// Origins of web pages that may call it, besides those of this machine.
    pub origins: Vec<String>,
}

impl HttpConfig {
    /// Refuses what would let strangers in.
    pub fn validate(&self) -> Result<()> {
        let refused = |what: String, remedy: &str| Err(Error::invalid("listen", what).with_remedy(remedy));
        let address = self.address;
        if !address.ip().is_loopback() && self.token.is_none() {
            return refused(
                format!("{address} can be reached by others, and no token keeps them out"),
                "set a token by --token-file or COFFERDAM_MCP_TOKEN, or listen on 127.0.0.1",
            );
        }
        if address.ip().is_unspecified() && self.hosts.is_empty() {
            return refused(
                format!("{address} is every address of this machine, and nothing says which name clients use"),
                "name it with --allow-host, or listen on one address",
            );
        }
        let scheme = |origin: &String| origin.starts_with("http://") || origin.starts_with("https://");
        if let Some(origin) = self.origins.iter().find(|origin| !scheme(origin)) {
            return refused(
                format!("'{}' is no origin of web pages", origin.escape_debug()),
                "write it as https://example.com",
            );
        }
        Ok(())
    }

    /// Names by which requests may call this server.
    fn allowed_hosts(&self) -> Vec<String> {
        let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let bound = (!self.address.ip().is_unspecified()).then(|| self.address.ip().to_string());
        own.into_iter().chain(bound).chain(self.hosts.iter().cloned()).collect()
    }

    /// Origins of pages that may call it. Pages of this machine may, where only it can connect.
    fn allowed_origins(&self) -> Vec<String> {
        let own = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"].map(str::to_owned);
        let own = if self.address.ip().is_loopback() { own.to_vec() } else { Vec::new() };
        own.into_iter().chain(self.origins.iter().cloned()).collect()
    }
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    config: HttpConfig,
}

impl Listening {
    /// Listens; nobody is answered yet.
    pub async fn bind(config: HttpConfig) -> Result<Self> {
        config.validate()?;
        let failed = |error| {
            Error::new(ErrorKind::Unavailable, "listen", format!("cannot listen on {}", config.address))
                .with_source(error)
                .with_remedy("choose another port, or an address of this machine")
        };
        let listener = TcpListener::bind(config.address).await.map_err(failed)?;
        Ok(Self { listener, config })
    }

    /// Where it listens: the port is known now, if it was left open.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.config.address)
    }

    /// Serves until `stop` is cancelled; then closes everything.
    pub async fn serve(self, server: &Server, stop: CancellationToken) -> Result<()> {
        let Self { listener, config } = self;
        let bounds = server.config().bounds.clone();
        // Ends sessions, streams and calls.
        let ending = CancellationToken::new();
        let service =
            Arc::new(Service { inner: service(server, &config, ending.clone()), token: config.token.clone() });
        let connections = Connections::new(bounds.connections);
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = accept(&listener) => accepted,
            };
            let Some((stream, client)) = accepted else { continue };
            let entry = connections.enter(client);
            let (service, own) = (Arc::clone(&service), Arc::clone(&entry));
            let answer = service_fn(move |request: hyper::Request<Incoming>| {
                let (service, own) = (Arc::clone(&service), Arc::clone(&own));
                async move { Ok::<_, std::convert::Infallible>(service.answer(request, own).await) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_headers(MAX_HEADERS)
                .max_buf_size(MAX_HEAD);
            let stream = TokioIo::new(Stalling::new(stream, WRITE_TIMEOUT));
            tokio::spawn(follow(graceful.watch(builder.serve_connection(stream, answer)), entry));
        }
        drop(listener);
        ending.cancel();
        // Who does not go by then is cut off by the end of the process.
        let _ = timeout(DRAIN, graceful.shutdown()).await;
        server.shutdown(PATIENCE).await
    }
}

/// Drives a connection to its end, which is its client's business, or cuts it off.
async fn follow(connection: impl Future, entry: Arc<Connection>) {
    let late = async {
        sleep(NEW_TIMEOUT).await;
        if !entry.is_new() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = connection => {}
        () = entry.evicted.cancelled() => {}
        () = late => {}
    }
}

async fn accept(listener: &TcpListener) -> Option<(TcpStream, Client)> {
    match listener.accept().await {
        Ok((stream, from)) => {
            // A late answer is worse than a small packet.
            let _ = stream.set_nodelay(true);
            Some((stream, Client::of(from.ip())))
        }
        Err(_) => {
            sleep(AFTER_FAILURE).await;
            None
        }
    }
}

fn service(
    server: &Server,
    config: &HttpConfig,
    ending: CancellationToken,
) -> StreamableHttpService<Handler, Sessions> {
    let bounds = &server.config().bounds;
    let most = usize::try_from(bounds.message.as_bytes()).unwrap_or(usize::MAX);
    let wall_time = server.config().spec.limits().wall_time;
    let sessions = Sessions::new(bounds.clients, bounds.idle.max(wall_time) + Duration::from_secs(60));
    let protocol = StreamableHttpServerConfig::default()
        .with_allowed_hosts(config.allowed_hosts())
        .with_allowed_origins(config.allowed_origins())
        .enforce_origin_validation()
        .with_max_request_body_bytes(most)
        .with_cancellation_token(ending);
    let server = server.clone();
    StreamableHttpService::new(move || Ok(server.stateless()), Arc::new(sessions), protocol)
}

/// What answers requests.
struct Service {
    inner: StreamableHttpService<Handler, Sessions>,
    token: Option<Token>,
}

impl Service {
    async fn answer(&self, mut request: hyper::Request<Incoming>, connection: Arc<Connection>) -> guard::Answer {
        if request.uri().path() != PATH {
            return guard::not_found();
        }
        if let Some(token) = &self.token
            && !token.admits(request.headers())
        {
            return guard::unauthorized();
        }
        if let Err(full) = connection.receive() {
            return guard::full(full);
        }
        request.extensions_mut().insert(connection.client);
        let (asked, deletes) = (Asked::of(connection.client), request.method() == Method::DELETE);
        let request = request.map(|body| Timed::new(body, Arc::clone(&connection)));
        let mut answer = ASKED.scope(Arc::clone(&asked), self.inner.handle(request)).await;
        if asked.found_full() {
            answer = guard::full(NoRoom::Server);
        }
        if deletes && answer.status() == StatusCode::ACCEPTED {
            // Clients take 200 and 204 for the end of a session, and complain of 202.
            *answer.status_mut() = StatusCode::NO_CONTENT;
        }
        connection.serve();
        answer.map(|body| Answering::new(body, connection).boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(address: &str, token: Option<&str>, hosts: &[&str]) -> HttpConfig {
        HttpConfig {
            address: address.parse().unwrap(),
            token: token.map(|text| Token::new(text).unwrap()),
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            origins: Vec::new(),
        }
    }

    /// Promise (MCP server): A public address needs a token and a host name.
    #[test]
    fn what_others_can_reach_needs_a_token_and_a_name() {
        let token = Some("0123456789abcdef");
        for (address, token, hosts, good) in [
            ("127.0.0.1:0", None, &[][..], true),
            ("[::1]:0", None, &[], true),
            ("192.0.2.1:80", None, &[], false),
            ("192.0.2.1:80", token, &[], true),
            ("0.0.0.0:80", token, &[], false),
            ("0.0.0.0:80", token, &["example.com"], true),
            ("[::]:80", None, &["example.com"], false),
        ] {
            let checked = config(address, token, hosts).validate();
            assert_eq!(checked.is_ok(), good, "{address} {checked:?}");
            assert!(checked.err().is_none_or(|error| error.remedy().is_some()));
        }
        assert!(config("192.0.2.1:80", token, &[]).allowed_origins().is_empty());
        assert!(HttpConfig { origins: vec!["x".to_owned()], ..config("127.0.0.1:0", None, &[]) }.validate().is_err());
    }
}

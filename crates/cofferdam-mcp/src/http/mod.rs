//! Server for many clients over streamable HTTP, with one address and one path.
//!
//! ```text
//! connection -> path -> token -> capacity -> Host and Origin -> the SDK: a session, or a single request
//! ```

mod body;
mod connections;
mod guard;
mod sessions;

use cofferdam_util::stall::Stalling;
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
use connections::{Connection, Connections};
pub use guard::Token;
use sessions::{REQUEST, Request, Sessions};

/// The path of the server.
pub const PATH: &str = "/mcp";
/// Timeout for the first authenticated request of a connection.
const NEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the head of a later request, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a write to a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// Maximum size of the head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Timeout for completing answers at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for closing all sandboxes at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval before the next accept after a failed one, for example without free descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Address and access control of the HTTP server.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The token that clients must present; required if other hosts can connect.
    pub token: Option<Token>,
    /// Host names of the server in requests, in addition to those of this host and the address.
    pub hosts: Vec<String>,
    /// Origins of web pages that may call the server, in addition to those of this host.
    pub origins: Vec<String>,
}

impl HttpConfig {
    /// Refuses settings that would allow unauthenticated access by other hosts.
    pub fn validate(&self) -> Result<()> {
        let refused = |what: String, remedy: &str| Err(Error::invalid("listen", what).with_remedy(remedy));
        let address = self.address;
        if !address.ip().is_loopback() && self.token.is_none() {
            return refused(
                format!("other hosts can reach {address}, but no token is set"),
                "set a token with --token-file or COFFERDAM_MCP_TOKEN, or listen on 127.0.0.1",
            );
        }
        if address.ip().is_unspecified() && self.hosts.is_empty() {
            return refused(
                format!("{address} stands for all addresses of this host, but no host name is allowed"),
                "allow the host name of the server with --allow-host, or listen on one address",
            );
        }
        let scheme = |origin: &String| origin.starts_with("http://") || origin.starts_with("https://");
        if let Some(origin) = self.origins.iter().find(|origin| !scheme(origin)) {
            return refused(
                format!("'{}' is not an origin of web pages", origin.escape_debug()),
                "write it as https://example.com",
            );
        }
        Ok(())
    }

    /// Returns the host names that requests may use.
    fn allowed_hosts(&self) -> Vec<String> {
        let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let bound = (!self.address.ip().is_unspecified()).then(|| self.address.ip().to_string());
        own.into_iter().chain(bound).chain(self.hosts.iter().cloned()).collect()
    }

    /// Returns the origins of web pages that may call the server. Pages of this host may if only this host can connect.
    fn allowed_origins(&self) -> Vec<String> {
        let own = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"].map(str::to_owned);
        let own = if self.address.ip().is_loopback() { own.to_vec() } else { Vec::new() };
        own.into_iter().chain(self.origins.iter().cloned()).collect()
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    config: HttpConfig,
}

impl Listening {
    /// Binds the socket. Answers no requests yet.
    pub async fn bind(config: HttpConfig) -> Result<Self> {
        config.validate()?;
        let failed = |error| {
            Error::new(ErrorKind::Unavailable, "listen", format!("cannot listen on {}", config.address))
                .with_source(error)
                .with_remedy("use another port, or an address of this host")
        };
        let listener = TcpListener::bind(config.address).await.map_err(failed)?;
        Ok(Self { listener, config })
    }

    /// Returns the address of the socket, with the port that the system assigned.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.config.address)
    }

    /// Serves until `stop` is cancelled, then closes all connections and sandboxes.
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
        // The end of the process closes remaining connections.
        let _ = timeout(DRAIN_TIMEOUT, graceful.shutdown()).await;
        server.shutdown(SHUTDOWN_TIMEOUT).await
    }
}

/// Drives a connection until its client closes it, or until it is evicted or times out.
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
            // Prefers low latency to fewer packets.
            let _ = stream.set_nodelay(true);
            Some((stream, Client::of(from.ip())))
        }
        Err(_) => {
            sleep(ACCEPT_RETRY_INTERVAL).await;
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
    let max_message = usize::try_from(bounds.message.as_bytes()).unwrap_or(usize::MAX);
    let wall_time = server.config().spec.limits().wall_time;
    let sessions = Sessions::new(bounds.clients, bounds.idle.max(wall_time) + Duration::from_secs(60));
    let protocol = StreamableHttpServerConfig::default()
        .with_allowed_hosts(config.allowed_hosts())
        .with_allowed_origins(config.allowed_origins())
        .enforce_origin_validation()
        .with_max_request_body_bytes(max_message)
        .with_cancellation_token(ending);
    let server = server.clone();
    StreamableHttpService::new(move || Ok(server.stateless()), Arc::new(sessions), protocol)
}

/// The HTTP service.
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
        let (current, deletes) = (Request::of(connection.client), request.method() == Method::DELETE);
        let request = request.map(|body| Timed::new(body, Arc::clone(&connection)));
        let mut answer = REQUEST.scope(Arc::clone(&current), self.inner.handle(request)).await;
        if let Some(no_room) = current.refused() {
            answer = guard::full(no_room);
        }
        if deletes && answer.status() == StatusCode::ACCEPTED {
            // Clients accept 200 and 204 for the end of a session, but not 202.
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
    fn public_address_needs_a_token_and_a_host_name() {
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

//! Many clients over streamable HTTP: one address, one path.
//!
//! ```text
//! connection -> path -> token -> Host and Origin -> the SDK: a session, or a request of its own
//! ```

mod body;
mod guard;
mod sessions;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Server;
use crate::handler::Handler;
use body::Timed;
pub use guard::Token;
use sessions::Sessions;

/// The path that is served.
pub const PATH: &str = "/mcp";
/// How long the head of a request may take, and how long a connection may be without one.
const HEAD: Duration = Duration::from_secs(30);
/// The most headers of a request, and the most bytes of its head.
const MOST_HEADERS: usize = 64;
const MOST_HEAD: usize = 64 * 1024;
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
        let connections = Arc::new(Semaphore::new(bounds.connections));
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = accept(&listener, &connections) => accepted,
            };
            let Some((stream, place)) = accepted else { continue };
            let service = Arc::clone(&service);
            let answer = service_fn(move |request: hyper::Request<Incoming>| {
                let service = Arc::clone(&service);
                async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_headers(MOST_HEADERS)
                .max_buf_size(MOST_HEAD);
            let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), answer));
            tokio::spawn(async move {
                // How a connection ends is its client's business.
                let _ = connection.await;
                drop(place);
            });
        }
        drop(listener);
        ending.cancel();
        // Who does not go by then is cut off by the end of the process.
        let _ = timeout(DRAIN, graceful.shutdown()).await;
        server.shutdown(PATIENCE).await
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // A late answer is worse than a small packet.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(_) => {
            tokio::time::sleep(AFTER_FAILURE).await;
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
    async fn answer(&self, request: hyper::Request<Incoming>) -> guard::Answer {
        if request.uri().path() != PATH {
            return guard::not_found();
        }
        if let Some(token) = &self.token
            && !token.admits(request.headers())
        {
            return guard::unauthorized();
        }
        self.inner.handle(request.map(Timed::new)).await
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

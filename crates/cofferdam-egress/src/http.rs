//! HTTP/1: each request is parsed, checked and sent on as a new one, so that client and server cannot disagree
//! about where it ends or whom it is for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::denials::Denials;
use crate::flow::{Flow, copy};
use crate::rules::Target;
use crate::scrub::Scrubbed;
use crate::secrets::Secrets;

/// Time in which a request's headers must arrive.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a request and its answer, without the answer's body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum size of the headers of a request, and of an answer.
const MAX_HEADERS: usize = 64 << 10;
/// Headers for the next hop only. Hyper sets those that describe the length of a body.
const HOP_BY_HOP: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("te"),
    HeaderName::from_static("trailer"),
];
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Headers by which servers take a request for one of another method or path than those that were checked.
const OVERRIDES: [&str; 5] =
    ["x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url"];
/// The maximum length of a method.
const MAX_METHOD: usize = 32;

/// The body of a server's answer, that answer without secrets, or an answer of the gateway.
type Body = Either<Either<Incoming, Scrubbed<Incoming>>, Full<Bytes>>;

/// The server of a client's requests.
#[derive(Debug)]
pub struct Route {
    pub target: Arc<Target>,
    pub port: u16,
    pub denials: Arc<Denials>,
    /// The secrets of the sandbox, if it has any.
    pub secrets: Option<Arc<Secrets>>,
    /// Decides about each request. Without it, all are allowed.
    pub flow: Option<Arc<Flow>>,
}

impl Route {
    /// Notes that a request or an answer is refused.
    fn deny(&self, what: &str, why: &str) {
        self.denials.note(format_args!("{what} {}:{}", self.target.name, self.port), why);
        if let Some(flow) = &self.flow {
            flow.set_refused(why);
        }
    }
}

/// The gateway's side of one connection to a server.
struct Upstream {
    sender: Mutex<SendRequest<Incoming>>,
    /// True once a client asked for an upgrade.
    upgrades: AtomicBool,
    /// Both sides of an upgraded connection.
    upgraded: parking_lot::Mutex<Option<[OnUpgrade; 2]>>,
    route: Route,
}

/// Serves the requests of one connection, until either side closes it.
pub async fn serve<C, S>(client: C, server: S, route: Route)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = hyper::client::conn::http1::Builder::new();
    let Ok((sender, connection)) = builder.max_buf_size(MAX_HEADERS).handshake(TokioIo::new(server)).await else {
        return;
    };
    // Dropped when it ends: nothing waits for a server that is gone.
    let connection = async move { drop(connection.with_upgrades().await) };
    let upstream = Arc::new(Upstream {
        sender: Mutex::new(sender),
        upgrades: AtomicBool::new(false),
        upgraded: parking_lot::Mutex::default(),
        route,
    });
    let served = Arc::clone(&upstream);
    let service = service_fn(move |request| {
        let upstream = Arc::clone(&served);
        async move { Ok::<_, std::convert::Infallible>(upstream.answer(request).await) }
    });
    {
        let mut serving = pin!(server_builder().serve_connection(TokioIo::new(client), service).with_upgrades());
        let served = tokio::select! {
            served = serving.as_mut() => served,
            () = connection => {
                if !upstream.upgrades.load(Ordering::Relaxed) {
                    // The client learns with the current answer that there will be no further one.
                    serving.as_mut().graceful_shutdown();
                }
                serving.as_mut().await
            }
        };
        // Another error belongs to the client or the server, which see it.
        if served.is_err_and(|error| error.is_parse()) {
            upstream.route.deny("an HTTP request to", "it is not valid HTTP/1");
        }
    }
    let upgraded = upstream.upgraded.lock().take();
    if let Some([client, server]) = upgraded
        && let (Ok(client), Ok(server)) = tokio::join!(client, server)
    {
        let _ = copy(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
}

/// Answers a request of a connection itself, with this text, and closes it.
pub async fn answer_all<C>(client: C, status: StatusCode, text: &str)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|_| async { Ok::<_, std::convert::Infallible>(own_answer(status, text)) });
    // An error belongs to the client, which sees it.
    drop(server_builder().serve_connection(TokioIo::new(client), service).await);
}

fn server_builder() -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT).max_buf_size(MAX_HEADERS).half_close(true);
    builder
}

impl Upstream {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let proxied = request.uri().authority().is_some();
        let prepared = self.prepare(request).await;
        if let Some(flow) = &self.route.flow {
            flow.report_request(method.as_str(), &path, prepared.as_ref().err().map(String::as_str));
        }
        match prepared {
            Ok((request, client)) => {
                let mut response = self.send(request, client).await;
                // The next request of a client of the proxy can be for another server, and needs another connection.
                if proxied && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response
            }
            Err(why) => self.refuse(&why),
        }
    }

    /// Checks a request, and converts it to the one that is sent on. Returns the client's side of an upgrade. Fails with
    /// the reason of a refusal.
    async fn prepare(&self, mut request: Request<Incoming>) -> Result<(Request<Incoming>, Option<OnUpgrade>), String> {
        let route = &self.route;
        check(&request, route)?;
        if let Some(flow) = &route.flow {
            flow.admit_request(request.method().as_str(), request.uri().path())?;
            flow.paced().await;
        }
        for name in OVERRIDES {
            request.headers_mut().remove(name);
        }
        // A client of the proxy names the server, which a server does not expect.
        if let (Some(_), Some(path)) = (request.uri().authority(), request.uri().path_and_query().cloned()) {
            *request.uri_mut() = path.into();
        }
        // Another protocol could carry requests that are not checked.
        let upgrades = is_websocket(request.headers());
        remove_hop_by_hop(request.headers_mut());
        if request.headers().contains_key(TRANSFER_ENCODING) {
            // Hyper has checked that the last one is chunked, and encodes the body again.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let client = upgrades.then(|| {
            self.upgrades.store(true, Ordering::Relaxed);
            set_upgrade(request.headers_mut());
            hyper::upgrade::on(&mut request)
        });
        if let Some(secrets) = self.secrets() {
            let (mut head, body) = request.into_parts();
            secrets.inject(&mut head, &route.target.name, route.port)?;
            request = Request::from_parts(head, body);
        }
        Ok((request, client))
    }

    /// Returns the secrets of the server, if it has any.
    fn secrets(&self) -> Option<&Secrets> {
        let Route { target, port, secrets, .. } = &self.route;
        secrets.as_deref().filter(|secrets| secrets.has_host(&target.name, *port))
    }

    async fn send(&self, request: Request<Incoming>, client: Option<OnUpgrade>) -> Response<Body> {
        let (route, secrets) = (&self.route, self.secrets());
        let sending = async {
            let mut sender = self.sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        };
        let Ok(Ok(mut response)) = timeout(ANSWER_TIMEOUT, sending).await else {
            return own_answer(StatusCode::BAD_GATEWAY, "the server closed the connection without an answer");
        };
        if let Some(secrets) = secrets {
            let (mut head, body) = response.into_parts();
            if let Err(why) = secrets.scrub(&mut head) {
                route.deny("an HTTP answer of", &why);
                return own_answer(StatusCode::BAD_GATEWAY, &why);
            }
            response = Response::from_parts(head, body);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client), true) = (client, is_websocket(response.headers())) else {
                return own_answer(StatusCode::BAD_GATEWAY, "the server changed to another protocol");
            };
            *self.upgraded.lock() = Some([client, hyper::upgrade::on(&mut response)]);
            remove_hop_by_hop(response.headers_mut());
            set_upgrade(response.headers_mut());
            return response.map(|body| Either::Left(Either::Left(body)));
        }
        let closes = response.version() == Version::HTTP_10 || has_token(response.headers(), "close");
        remove_hop_by_hop(response.headers_mut());
        if response.headers().contains_key(TRANSFER_ENCODING) {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        if closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| {
            Either::Left(match secrets {
                Some(secrets) => Either::Right(secrets.scrub_body(body)),
                None => Either::Left(body),
            })
        })
    }

    /// Notes a refused request, and returns its answer.
    fn refuse(&self, why: &str) -> Response<Body> {
        self.route.deny("an HTTP request to", why);
        own_answer(StatusCode::FORBIDDEN, &format!("refused by the sandbox's network policy: {why}"))
    }
}

/// Checks that a request is for the name and port of its connection.
fn check(request: &Request<Incoming>, route: &Route) -> Result<(), String> {
    if request.method() == Method::CONNECT {
        return Err("a connection through another server is not allowed".to_owned());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err("the request must have one Host header".to_owned());
    };
    let host = host.to_str().map_err(|_| "its Host header is invalid".to_owned())?;
    let authority = request.uri().authority().map(|authority| authority.as_str());
    for named in [Some(host), authority].into_iter().flatten() {
        if !is_of(named, route) {
            return Err(format!("the request is for {named}"));
        }
    }
    if request.method().as_str().len() > MAX_METHOD {
        return Err("its method is too long".to_owned());
    }
    Ok(())
}

fn is_of(authority: &str, route: &Route) -> bool {
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().ok()),
        // The client means the default port, or does not name the one that it uses.
        None => (authority, Some(route.port)),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    port == Some(route.port) && name.eq_ignore_ascii_case(&route.target.name)
}

/// Returns true if headers ask for or confirm a change to WebSocket, and to nothing else.
fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let is = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes());
    protocols.next().is_some_and(is) && protocols.next().is_none()
}

fn set_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    tokens(headers).any(|found| found.eq_ignore_ascii_case(token))
}

/// Returns the words of all Connection headers.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Removes the headers for the next hop, those that `Connection` names included.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers)
        .filter_map(|name| name.parse().ok())
        .filter(|name| ![HOST, TRANSFER_ENCODING].contains(name))
        .collect();
    for name in named.into_iter().chain(HOP_BY_HOP).chain([CONNECTION, UPGRADE]) {
        headers.remove(name);
    }
}

/// Returns an answer of the gateway, after which the connection ends.
fn own_answer(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(format!("{text}\n")))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_other_hosts_are_recognised() {
        use cofferdam_contract::NetworkPolicy;

        use crate::rules::{Query, Rules};

        let policy = NetworkPolicy::Allow { hosts: vec!["a.example".to_owned()] };
        let Ok(Query::Name(target)) = Rules::of(&policy).unwrap().unwrap().lookup("a.example") else { panic!() };
        let route =
            |port| Route { target: Arc::clone(&target), port, denials: Arc::default(), secrets: None, flow: None };
        for (authority, port, expected) in [
            ("a.example", 80, true),
            ("A.Example.", 80, true),
            ("a.example:80", 80, true),
            ("a.example", 8080, true),
            ("a.example:8080", 8080, true),
            ("a.example:81", 80, false),
            ("a.example:", 80, false),
            ("b.example", 80, false),
            ("a.example.b", 80, false),
            ("", 80, false),
        ] {
            assert_eq!(is_of(authority, &route(port)), expected, "{authority} {port}");
        }
    }

    #[test]
    fn headers_for_the_next_hop_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("connection", "close, x-own, host"), ("x-own", "1"), ("te", "trailers"), ("host", "a")] {
            headers.append(name, value.parse().unwrap());
        }
        assert!(has_token(&headers, "close") && !is_websocket(&headers));
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["host"]);
        headers.append(UPGRADE, WEBSOCKET);
        assert!(is_websocket(&headers));
        headers.append(UPGRADE, "h2c".parse().unwrap());
        assert!(!is_websocket(&headers));
    }
}

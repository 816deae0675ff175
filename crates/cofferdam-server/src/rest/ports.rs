//! Ports of sandboxes: a reverse proxy for HTTP/1.1 and WebSockets, and a tunnel for any bytes.
//!
//! The programs of the guest are hostile: their heads are bounded, their answers have deadlines, and their pages get an
//! origin of their own. Credentials for this server never reach them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Request, State};
use axum::http::header::{
    ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, COOKIE, EXPECT, FORWARDED, HOST,
    LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, REFERRER_POLICY, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use axum::response::Response;
use bytes::Bytes;
use cofferdam_contract::{Connection, Error, ErrorKind, Sandbox};
use futures_util::{SinkExt, StreamExt};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, timeout};

use super::App;
use super::extract::Path;
use super::problem::Failure;
use super::upload::{Upload, Watch};
use crate::caller::Caller;
use crate::live::{LiveSandbox, Use};

/// Time to connect to a program in a sandbox.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a program to send the head of its answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Time without a byte after which an answer or a connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Bytes of the head of an answer.
const MAX_HEAD: usize = 64 << 10;
/// Header fields of an answer.
const MAX_HEADERS: usize = 100;
/// Bytes that a tunnel passes at once.
const PIECE: usize = 64 << 10;
/// The text of a message that ends one direction of a tunnel.
pub const END: &str = "eof";
/// The policy for pages below a path of the API: an origin of their own, so that they cannot act as the API's.
const SANDBOXED: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";
/// The start of names of this server's own cookies.
const OWN_COOKIES: &[&str] = &["cofferdam", "__Host-cofferdam", "__Secure-cofferdam"];

/// A mark of requests whose host name led to the sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByHost;

/// Leads a request for `PORT-SANDBOX.DOMAIN` to the proxy. No other name below the domain leads anywhere.
pub fn route_by_host<B>(request: &mut hyper::Request<B>, domain: &str) {
    let host = request.uri().authority().map(|authority| authority.host().to_owned());
    let host = host.or_else(|| {
        let text = request.headers().get(HOST)?.to_str().ok()?;
        text.parse::<axum::http::uri::Authority>().ok().map(|authority| authority.host().to_owned())
    });
    let Some(label) = host.as_deref().and_then(|host| label_of(host, domain)) else { return };
    let rest = request.uri().path_and_query().map_or("/", |rest| rest.as_str());
    let rest = if rest.starts_with('/') { rest } else { "/" };
    let target = match label.split_once('-').filter(|(port, sandbox)| port.parse::<u16>().is_ok() && is_plain(sandbox))
    {
        Some((port, sandbox)) => format!("/v1/sandboxes/{sandbox}/ports/{port}{rest}"),
        None => "/".to_owned(),
    };
    *request.uri_mut() = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
    request.extensions_mut().insert(ByHost);
}

fn label_of(host: &str, domain: &str) -> Option<String> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host.strip_suffix(&domain.to_ascii_lowercase())?.strip_suffix('.').map(str::to_owned)
}

fn is_plain(sandbox: &str) -> bool {
    !sandbox.is_empty() && sandbox.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

/// Pass a request to a server in a sandbox.
///
/// The server gets the path after the port. WebSockets work, too. Credentials and cookies of this API are removed, and
/// pages get an origin of their own by a content security policy.
#[utoipa::path(method(get, head, post, put, patch, delete), path = "/v1/sandboxes/{sandbox}/ports/{port}/{*path}",
    tag = "ports", params(("sandbox" = String, Path, description = "The id or name"), ("port" = u16, Path),
        ("path" = String, Path, description = "The path in the server")),
    responses((status = "2XX", description = "The answer of the server in the sandbox"),
        (status = 502, description = "The server in the sandbox gave no valid answer"),
        (status = 504, description = "The server in the sandbox gave no answer in time")))]
pub async fn proxy(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, port, _path)): Path<(String, u16, String)>,
    request: Request,
) -> Result<Response, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    Forward { app, caller, live, port }.pass(request).await
}

/// Pass a request for the root to a server in a sandbox.
#[utoipa::path(method(get, head, post, put, patch, delete), path = "/v1/sandboxes/{sandbox}/ports/{port}/",
    tag = "ports", params(("sandbox" = String, Path, description = "The id or name"), ("port" = u16, Path)),
    responses((status = "2XX", description = "The answer of the server in the sandbox")))]
pub async fn proxy_root(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, port)): Path<(String, u16)>,
    request: Request,
) -> Result<Response, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    Forward { app, caller, live, port }.pass(request).await
}

/// A request on its way to a port.
struct Forward {
    app: App,
    caller: Caller,
    live: Arc<LiveSandbox>,
    port: u16,
}

impl Forward {
    async fn pass(self, mut request: Request) -> Result<Response, Failure> {
        let by_host = request.extensions().get::<ByHost>().is_some();
        let prefix = (!by_host).then(|| format!("/v1/sandboxes/{}/ports/{}", self.live.id, self.port));
        let keep = self.live.keep();
        let upgrade = is_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
        let (sent, watch) = self.rewritten(request, by_host, upgrade.is_some())?;
        let stream = connect(&**self.live.used(), self.port).await?;
        let builder =
            http1::Builder::new().max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS).handshake(TokioIo::new(stream));
        let (mut sender, connection) = builder.await.map_err(bad_gateway)?;
        let driver = Driver(tokio::spawn(async move {
            // The answer reports a failure.
            let _ = connection.with_upgrades().await;
        }));
        let mut answer = answered(sender.send_request(sent), watch.as_ref()).await?;
        let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let theirs = switched.then(|| hyper::upgrade::on(&mut answer));
        let (mut head, body) = answer.into_parts();
        clean_answer(&mut head.headers, prefix.as_deref(), switched);
        match (upgrade, theirs) {
            (Some(ours), Some(theirs)) => {
                // The connection is no request any more, and is counted on its own.
                let permits = (self.app.request_permit()?, self.app.tenant_slot(&self.caller.tenant)?);
                let stream = self.app.stream("port", &self.caller, Some(&self.live.id));
                let (app, caller, stop) = (self.app.clone(), self.caller, self.app.stop_token());
                tokio::spawn(async move {
                    let _held = (permits, keep, driver, stream);
                    let joined = async {
                        let (ours, theirs) = tokio::try_join!(ours, theirs).ok()?;
                        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                        // A connection that breaks has ended.
                        tokio::io::copy_bidirectional(&mut ours, &mut theirs).await.ok()
                    };
                    tokio::select! {
                        _ = joined => {}
                        () = stop.cancelled() => {}
                        () = app.key_ended(&caller) => {}
                    }
                });
                Ok(Response::from_parts(head, Body::empty()))
            }
            (None, Some(_)) => Err(bad_gateway("it switched protocols without a request for that")),
            (_, None) => {
                let body =
                    Answer { inner: body, idle: Box::pin(tokio::time::sleep(IDLE_TIMEOUT)), _held: (keep, driver) };
                Ok(Response::from_parts(head, Body::new(body)))
            }
        }
    }

    /// Returns the request that the server in the sandbox gets.
    fn rewritten(
        &self,
        request: Request,
        by_host: bool,
        upgrade: bool,
    ) -> Result<(hyper::Request<Body>, Option<Watch>), Failure> {
        let (mut parts, body) = request.into_parts();
        let full = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        // The path is passed as it was written. It begins after five slashes and the port.
        let (at, _) = full.match_indices('/').nth(5).ok_or_else(|| Failure::bad_request("the path has no port"))?;
        let (prefix, rest) = full.split_at(at);
        let prefix = HeaderValue::from_str(prefix);
        parts.uri = rest.parse().map_err(|_| Failure::bad_request("the path is malformed"))?;
        parts.version = Version::HTTP_11;
        clean_request(&mut parts.headers, by_host, upgrade);
        if !by_host {
            let host = format!("localhost:{}", self.port);
            parts.headers.insert(HOST, HeaderValue::from_str(&host).unwrap_or(HeaderValue::from_static("localhost")));
            if let Ok(prefix) = prefix {
                parts.headers.insert("x-forwarded-prefix", prefix);
            }
        }
        let has_body = parts.headers.contains_key(CONTENT_LENGTH) || !hyper::body::Body::is_end_stream(&body);
        let (bounds, empty) = (self.app.bounds(), Body::empty());
        let (body, watch) = match has_body && !upgrade {
            true => {
                let (upload, watch) = Upload::new(body, bounds.file, bounds.stall_time);
                (Body::from_stream(upload), Some(watch))
            }
            false => (empty, None),
        };
        let mut request = hyper::Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = parts.uri;
        *request.headers_mut() = parts.headers;
        Ok((request, watch))
    }
}

/// Waits for the head of an answer, for some time since the server in the sandbox has last read from the body of the
/// request.
async fn answered(
    sending: impl Future<Output = hyper::Result<hyper::Response<Incoming>>>,
    watch: Option<&Watch>,
) -> Result<hyper::Response<Incoming>, Failure> {
    let mut sending = std::pin::pin!(sending);
    let progress = async || match watch {
        Some(watch) => watch.progress().await,
        None => std::future::pending().await,
    };
    loop {
        tokio::select! {
            answer = &mut sending => {
                let error = match answer {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                // A body that was too large or too slow is no failure of the server in the sandbox.
                let failed = || Error::new(ErrorKind::Unavailable, "pass request", "the request was not sent");
                watch.map_or(Ok(()), |watch| match watch.is_good() {
                    true => Ok(()),
                    false => watch.outcome(Err(failed())),
                })?;
                return Err(bad_gateway(error));
            }
            () = progress() => {}
            () = tokio::time::sleep(HEAD_TIMEOUT) => return Err(too_late()),
        }
    }
}

async fn connect(sandbox: &dyn Sandbox, port: u16) -> Result<Connection, Failure> {
    if port == 0 {
        return Err(Failure::bad_request("the port must be 1 to 65535"));
    }
    Ok(timeout(CONNECT_TIMEOUT, sandbox.connect(port)).await.map_err(|_| too_late())??)
}

fn bad_gateway(reason: impl std::fmt::Display) -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "pass request", "the server in the sandbox gave no valid answer");
    // The text of a guest's failure is bounded, and is no source of this server.
    Failure(
        StatusCode::BAD_GATEWAY,
        error.with_context("reason", reason.to_string().chars().take(200).collect::<String>()),
    )
}

fn too_late() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "pass request", "the server in the sandbox gave no answer in time");
    Failure(StatusCode::GATEWAY_TIMEOUT, error)
}

pub(super) fn is_upgrade(request: &Request) -> bool {
    let websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    request.version() == Version::HTTP_11 && request.headers().get(UPGRADE).is_some_and(websocket)
}

/// Removes the fields that belong to one connection.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // Both sides frame their bodies themselves, so that no length is taken away.
    named.iter().filter(|name| **name != CONTENT_LENGTH).for_each(|name| drop(headers.remove(name)));
    for name in [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

fn clean_request(headers: &mut HeaderMap, by_host: bool, upgrade: bool) {
    remove_hop_by_hop(headers);
    for name in [AUTHORIZATION, FORWARDED, EXPECT] {
        headers.remove(name);
    }
    let forwarded: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("x-forwarded-")).cloned().collect();
    forwarded.iter().for_each(|name| drop(headers.remove(name)));
    let cookies: Vec<_> = headers.get_all(COOKIE).iter().filter_map(foreign_cookies).collect();
    headers.remove(COOKIE);
    if by_host {
        for value in cookies {
            headers.append(COOKIE, value);
        }
    }
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
}

/// Returns the cookies that are not this server's own.
fn foreign_cookies(value: &HeaderValue) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let is_own = |cookie: &&str| OWN_COOKIES.iter().any(|own| cookie.trim_start().starts_with(own));
    let others: Vec<_> = text.split(';').filter(|cookie| !is_own(cookie)).map(str::trim).collect();
    (!others.is_empty()).then(|| HeaderValue::from_str(&others.join("; ")).ok()).flatten()
}

/// Cleans the head of an answer. `prefix` is the path of the port, unless a host name leads to it.
fn clean_answer(headers: &mut HeaderMap, prefix: Option<&str>, switched: bool) {
    let protocol = headers.get(UPGRADE).cloned();
    remove_hop_by_hop(headers);
    for name in [ALT_SVC, STRICT_TRANSPORT_SECURITY] {
        headers.remove(name);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if switched {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.unwrap_or(HeaderValue::from_static("websocket")));
    }
    let Some(prefix) = prefix else {
        // A cookie for the whole domain would reach other sandboxes.
        let own = |value: &&HeaderValue| {
            let names =
                value.as_bytes().split(|byte| *byte == b';').map(|part| part.split(|byte| *byte == b'=').next());
            !names.flatten().any(|name| name.trim_ascii().eq_ignore_ascii_case(b"domain"))
        };
        let cookies: Vec<_> = headers.get_all(SET_COOKIE).iter().filter(own).cloned().collect();
        headers.remove(SET_COOKIE);
        for value in cookies {
            headers.append(SET_COOKIE, value);
        }
        return;
    };
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let within = location.filter(|path| path.starts_with('/') && !path.starts_with("//"));
    if let Some(Ok(location)) = within.map(|path| HeaderValue::from_str(&format!("{prefix}{path}"))) {
        headers.insert(LOCATION, location);
    }
    let removed = |name: &&HeaderName| {
        let name = name.as_str();
        name.starts_with("access-control-")
            || matches!(name, "clear-site-data" | "service-worker-allowed" | "set-cookie")
    };
    let removed: Vec<_> = headers.keys().filter(removed).cloned().collect();
    removed.iter().for_each(|name| drop(headers.remove(name)));
    // A policy of the guest may only add to this one.
    headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOXED));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
}

/// The task of a connection to a sandbox, which ends with this value.
pub(super) struct Driver(tokio::task::JoinHandle<()>);

impl Driver {
    pub(super) fn new(task: tokio::task::JoinHandle<()>) -> Self {
        Self(task)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of an answer, which ends if no byte arrives for too long.
struct Answer {
    inner: Incoming,
    idle: Pin<Box<Sleep>>,
    _held: (Use, Driver),
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(frame) => {
                self.idle.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if self.idle.as_mut().poll(context).is_ready() => {
                Poll::Ready(Some(Err("the answer of the sandbox stalled".into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.inner.size_hint()
    }
}

/// Connect to a port of a sandbox by a WebSocket.
///
/// Binary messages have the bytes. The text message `eof` ends one direction.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/tcp/{port}", tag = "ports",
    params(("sandbox" = String, Path, description = "The id or name"), ("port" = u16, Path)),
    responses((status = 101, description = "The connection is a WebSocket now")))]
pub async fn tunnel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, port)): Path<(String, u16)>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let upgrade = upgrade.map_err(|error| Failure::bad_request(error.body_text()))?;
    let connection = connect(&**live.used(), port).await?;
    let permits = (app.request_permit()?, app.tenant_slot(&caller.tenant)?);
    let stream = app.stream("port", &caller, Some(&live.id));
    let (stop, keep) = (app.stop_token(), live.keep());
    let (max, ping) = (app.bounds().stdin, app.bounds().stall_time / 4);
    Ok(upgrade.max_message_size(max).max_frame_size(max).on_upgrade(move |socket| async move {
        let _held = (permits, keep, stream);
        tokio::select! {
            () = relay(socket, connection, ping) => {}
            () = stop.cancelled() => {}
            () = app.key_ended(&caller) => {}
        }
    }))
}

/// Passes bytes in both directions, until both have ended or one has broken. Neither waits for the other.
async fn relay(socket: WebSocket, connection: Connection, ping: Duration) {
    let (mut from, mut to) = tokio::io::split(connection);
    let (mut sending, mut receiving) = socket.split();
    let is_received = tokio::sync::Notify::new();
    let out = async {
        let (mut piece, mut can_read) = (vec![0; PIECE], true);
        let mut pings = tokio::time::interval(ping);
        loop {
            let message = tokio::select! {
                read = from.read(&mut piece), if can_read => match read {
                    Ok(0) => {
                        can_read = false;
                        Message::Text(END.into())
                    }
                    Ok(count) => Message::Binary(Bytes::copy_from_slice(&piece[..count])),
                    Err(error) => return Err(error),
                },
                // The other direction may still send, and a ping to a client that has gone fails in time.
                _ = pings.tick() => Message::Ping(Bytes::new()),
                () = is_received.notified(), if !can_read => return Ok(()),
            };
            sending.send(message).await.map_err(io::Error::other)?;
        }
    };
    let input = async {
        loop {
            match receiving.next().await {
                Some(Ok(Message::Binary(data))) => to.write_all(&data).await?,
                Some(Ok(Message::Text(text))) if text.as_str() == END => {
                    to.shutdown().await?;
                    is_received.notify_one();
                    return Ok(());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    };
    let both: io::Result<_> = tokio::try_join!(out, input);
    if both.is_ok() {
        let _ = timeout(Duration::from_secs(5), sending.send(Message::Close(None))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut all: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        all.sort();
        all
    }

    #[test]
    fn host_names_below_the_domain_lead_to_ports_only() {
        for (host, path, expected) in [
            ("80-sb-1.ports.example", "/a/../b?c", "/v1/sandboxes/sb-1/ports/80/a/../b?c"),
            ("8080-Box.PORTS.example:443", "/", "/v1/sandboxes/box/ports/8080/"),
            ("80-a_b.ports.example.", "/v1/keys", "/v1/sandboxes/a_b/ports/80/v1/keys"),
            ("x.ports.example", "/v1/sandboxes", "/"),
            ("70000-x.ports.example", "/v1/sandboxes", "/"),
            ("80-x.y.ports.example", "/v1/sandboxes", "/"),
            ("80-.ports.example", "/v1/sandboxes", "/"),
            ("ports.example", "/v1/sandboxes", "/v1/sandboxes"),
            ("80-x.other", "/v1/sandboxes", "/v1/sandboxes"),
        ] {
            let mut request = hyper::Request::get(path).header(HOST, host).body(()).unwrap();
            route_by_host(&mut request, "ports.example");
            assert_eq!(request.uri().to_string(), expected, "{host}");
        }
    }

    #[test]
    fn credentials_and_hop_by_hop_fields_do_not_reach_the_guest() {
        let request = [
            ("authorization", "Bearer cfd_secret"),
            ("cookie", "cofferdam_session=s; theme=dark"),
            ("connection", "x-private, content-length"),
            ("x-private", "1"),
            ("content-length", "3"),
            ("x-forwarded-for", "192.0.2.1"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ];
        let mut by_path = headers(&request);
        clean_request(&mut by_path, false, false);
        assert_eq!(shown(&by_path), ["accept: */*", "content-length: 3"]);
        let mut by_host = headers(&request);
        clean_request(&mut by_host, true, false);
        assert_eq!(shown(&by_host), ["accept: */*", "content-length: 3", "cookie: theme=dark"]);
    }

    #[test]
    fn guest_responses_cannot_set_headers_of_the_origin() {
        let answer = [
            ("set-cookie", "a=b"),
            ("set-cookie", "c=d; Domain=example"),
            ("content-security-policy", "sandbox allow-same-origin"),
            ("access-control-allow-origin", "*"),
            ("strict-transport-security", "max-age=1"),
            ("x-content-type-options", "none"),
            ("location", "/login"),
        ];
        let mut by_path = headers(&answer);
        clean_answer(&mut by_path, Some("/p/80"), false);
        assert_eq!(
            shown(&by_path),
            [
                "content-security-policy: sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
                "content-security-policy: sandbox allow-same-origin",
                "cross-origin-resource-policy: same-origin",
                "location: /p/80/login",
                "referrer-policy: no-referrer",
                "x-content-type-options: nosniff",
            ]
        );
        let mut by_host = headers(&answer);
        clean_answer(&mut by_host, None, false);
        assert!(by_host.get_all(SET_COOKIE).iter().eq(["a=b"]), "{by_host:?}");
    }
}

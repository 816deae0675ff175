//! HTTP/1 without TLS: each request is parsed, checked and sent on as a new one, so that client and server cannot disagree
//! about where it ends or whom it is for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::denials::Denials;
use crate::rules::Target;

/// Time in which a request's headers must arrive.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a request's headers.
const MAX_HEADERS: usize = 64 << 10;
/// Headers for the next hop only. Hyper sets those that describe the length of a body.
const HOP_BY_HOP: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("te"),
    HeaderName::from_static("trailer"),
];

type Body = Either<Incoming, Full<Bytes>>;

/// Where a client's requests go.
pub struct Route {
    pub target: Arc<Target>,
    pub port: u16,
    pub denials: Arc<Denials>,
}

/// Serves the requests of one connection, until either side closes it.
pub async fn serve<S>(client: S, server: TcpStream, route: Route)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok((sender, connection)) = hyper::client::conn::http1::handshake(TokioIo::new(server)).await else { return };
    // Ends with this future.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.with_upgrades().await) });
    let (sender, tasks, route) = (Arc::new(Mutex::new(sender)), Arc::new(Mutex::new(tasks)), Arc::new(route));
    let ended = Arc::clone(&tasks);
    let service = service_fn(move |request| {
        let (sender, tasks, route) = (Arc::clone(&sender), Arc::clone(&tasks), Arc::clone(&route));
        async move { forward(request, &sender, &tasks, &route).await }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(MAX_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades();
    // An error belongs to the client or the server, which see it.
    let _ = serving.await;
    // An upgraded connection goes on in a task of its own.
    let mut tasks = ended.lock().await;
    while tasks.join_next().await.is_some() {}
}

async fn forward(
    mut request: Request<Incoming>,
    sender: &Mutex<SendRequest<Incoming>>,
    tasks: &Mutex<JoinSet<()>>,
    route: &Route,
) -> hyper::Result<Response<Body>> {
    if let Err(why) = check(&request, route) {
        route.denials.note(format_args!("an HTTP request to {}:{}", route.target.name, route.port), &why);
        return Ok(refusal(&why));
    }
    // Another protocol could carry requests that are not checked.
    let is_websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    let upgrades =
        request.headers().get_all(UPGRADE).iter().all(is_websocket) && request.headers().contains_key(UPGRADE);
    remove_hop_by_hop(request.headers_mut(), upgrades);
    let client = upgrades.then(|| hyper::upgrade::on(&mut request));
    let mut response = {
        let mut sender = sender.lock().await;
        sender.ready().await?;
        sender.send_request(request).await?
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let server = hyper::upgrade::on(&mut response);
        tasks.lock().await.spawn(async move {
            if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
                let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
            }
        });
    } else {
        remove_hop_by_hop(response.headers_mut(), false);
    }
    Ok(response.map(Either::Left))
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
    Ok(())
}

fn is_of(authority: &str, route: &Route) -> bool {
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().ok()),
        None => (authority, Some(80)),
    };
    // Without a port, the client means the default one, or does not name the one that it uses.
    let same_port = port == Some(route.port) || !authority.contains(':');
    let name = name.strip_suffix('.').unwrap_or(name);
    same_port && name.eq_ignore_ascii_case(&route.target.name)
}

fn remove_hop_by_hop(headers: &mut HeaderMap, upgrades: bool) {
    // The client may name further headers for the next hop.
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != UPGRADE && *name != HOST)
        .collect();
    for name in named.into_iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
    if !upgrades {
        headers.remove(CONNECTION);
        headers.remove(UPGRADE);
    }
}

fn refusal(why: &str) -> Response<Body> {
    let text = format!("refused by the sandbox's network policy: {why}\n");
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(text))));
    *response.status_mut() = StatusCode::FORBIDDEN;
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
        let route = |port| Route { target: Arc::clone(&target), port, denials: Arc::default() };
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
        remove_hop_by_hop(&mut headers, false);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["host"]);
    }
}

//! A client of HTTP under the rules of a policy, for programs that make requests on behalf of untrusted code.
//!
//! It resolves and judges each name, address and port as the gateway does. It follows no redirects: a redirect is a new
//! request, which the caller makes if it wants to.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{NetworkPolicy, Result};
use http_body_util::{BodyExt, Full};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::authority::Roots;
use crate::intercept;
use crate::rules::{Content, Query, Refusal, Rules, Server};
use crate::upstream::{Failure, Upstream};

/// The maximum number of headers of a request, and of their bytes.
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;
/// The maximum length of a URL.
const MAX_URL: usize = 8 << 10;
/// Headers that the client sets itself, or that change the framing of a message.
const OWN_HEADERS: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A request.
#[derive(Debug, Clone, Default)]
pub struct FetchRequest {
    /// The method. Empty means `GET`.
    pub method: String,
    /// The URL, with the scheme `http` or `https`.
    pub url: String,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The maximum time from the look-up of the name to the last byte of the response.
    pub timeout: Duration,
    /// The maximum size of the response's body. More is cut off.
    pub max_body: usize,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchResponse {
    /// The status.
    pub status: u16,
    /// The headers whose values are text.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// True if the body was longer than allowed.
    pub truncated: bool,
}

/// The reason why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchError {
    /// The policy does not allow the server or the request.
    Denied {
        /// The server, as in a policy.
        server: String,
        /// The reason.
        reason: String,
    },
    /// The request is malformed.
    Invalid(&'static str),
    /// The server did not answer as HTTP demands.
    Failed(String),
    /// The time is over.
    Timeout,
}

/// A client under one policy.
#[derive(Debug)]
pub struct Client {
    rules: Rules,
    upstream: Upstream,
    roots: Option<Roots>,
}

/// The server of a URL.
struct Destination<'a> {
    is_secure: bool,
    host: &'a str,
    port: u16,
}

impl Client {
    /// Creates a client. A policy without a network refuses everything.
    pub fn new(policy: &NetworkPolicy) -> Result<Self> {
        Ok(Self { rules: Rules::of(policy)?.unwrap_or_default(), upstream: Upstream::default(), roots: None })
    }

    /// Trusts these roots in place of the host's.
    pub fn with_roots(mut self, roots: Roots) -> Self {
        self.roots = Some(roots);
        self
    }

    /// Makes a request.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn fetch(&self, request: FetchRequest) -> std::result::Result<FetchResponse, FetchError> {
        let timeout = request.timeout;
        tokio::time::timeout(timeout, self.exchange(request)).await.unwrap_or(Err(FetchError::Timeout))
    }

    async fn exchange(&self, request: FetchRequest) -> std::result::Result<FetchResponse, FetchError> {
        if request.url.len() > MAX_URL {
            return Err(FetchError::Invalid("the URL is longer than 8 KiB"));
        }
        let uri: Uri = request.url.parse().map_err(|_| FetchError::Invalid("the URL is malformed"))?;
        let to = destination(&uri)?;
        let message = message(&request, &uri, &to)?;
        self.check_rules(&message, &to)?;
        let stream = self.connect(&to).await?;
        if !to.is_secure {
            return send(stream, message, request.max_body).await;
        }
        let roots = match &self.roots {
            Some(roots) => roots.clone(),
            None => Roots::of_host().await.map_err(|error| FetchError::Failed(error.to_string()))?,
        };
        let stream = intercept::connect(stream, to.host, &roots).await.map_err(FetchError::Failed)?;
        send(stream, message, request.max_body).await
    }

    /// Checks the request against the rules, before anything is resolved.
    fn check_rules(&self, message: &Request<Full<Bytes>>, to: &Destination<'_>) -> std::result::Result<(), FetchError> {
        let content = Content::Request {
            secure: to.is_secure,
            method: message.method().as_str().to_owned(),
            path: message.uri().path().to_owned(),
        };
        let name = to.host.to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        let server = name.parse().map_or(Server::Name(name), Server::Address);
        self.rules.decide(server, to.port, &content).map(drop).map_err(|refusal| denied(to, refusal))
    }

    async fn connect(&self, to: &Destination<'_>) -> std::result::Result<TcpStream, FetchError> {
        let connected = match self.rules.lookup(to.host).map_err(|refusal| denied(to, refusal))? {
            Query::Address(address) => {
                self.upstream.connect_literal(SocketAddr::new(address, to.port), &self.rules).await
            }
            Query::Name(target) if !target.has_port(to.port) => return Err(denied(to, Refusal::OtherPort)),
            Query::Name(target) => self.upstream.connect(&target, to.port, &self.rules).await,
        };
        connected.map_err(|failure| match failure {
            Failure::Denied(refusal) => denied(to, refusal),
            Failure::Unreachable => FetchError::Failed(format!("{}:{} does not answer", to.host, to.port)),
            Failure::Exhausted => FetchError::Failed("the host has no free descriptor".to_owned()),
        })
    }
}

fn denied(to: &Destination<'_>, refusal: Refusal) -> FetchError {
    let host = if to.host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
        format!("[{}]", to.host)
    } else {
        to.host.to_owned()
    };
    FetchError::Denied { server: format!("{host}:{}", to.port), reason: refusal.to_string() }
}

fn destination(uri: &Uri) -> std::result::Result<Destination<'_>, FetchError> {
    let (is_secure, default) = match uri.scheme_str() {
        Some("https") => (true, 443),
        Some("http") => (false, 80),
        _ => return Err(FetchError::Invalid("the URL has neither the scheme http nor https")),
    };
    let authority = uri.authority().ok_or(FetchError::Invalid("the URL has no host"))?;
    if authority.as_str().contains('@') {
        return Err(FetchError::Invalid("the URL has a user; use the header authorization"));
    }
    let host = authority.host();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok(Destination { is_secure, host, port: authority.port_u16().unwrap_or(default) })
}

fn message(
    request: &FetchRequest,
    uri: &Uri,
    to: &Destination<'_>,
) -> std::result::Result<Request<Full<Bytes>>, FetchError> {
    let method = match request.method.as_str() {
        "" => Method::GET,
        text => Method::from_bytes(text.as_bytes()).map_err(|_| FetchError::Invalid("the method is malformed"))?,
    };
    if method == Method::CONNECT || method == Method::TRACE {
        return Err(FetchError::Invalid("the methods CONNECT and TRACE are not allowed"));
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = match (uri.authority(), to.is_secure, to.port) {
        (Some(authority), true, 443) | (Some(authority), false, 80) => authority.host().to_owned(),
        (Some(authority), ..) => format!("{}:{}", authority.host(), to.port),
        (None, ..) => return Err(FetchError::Invalid("the URL has no host")),
    };
    let bytes: usize = request.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if request.headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        return Err(FetchError::Invalid("the headers are more than 64, or longer than 16 KiB"));
    }
    let mut builder = Request::builder().method(method).uri(path).header("host", host);
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| FetchError::Invalid("a header is malformed"))?;
        let value = HeaderValue::from_str(value).map_err(|_| FetchError::Invalid("a header is malformed"))?;
        if OWN_HEADERS.contains(&name.as_str()) {
            return Err(FetchError::Invalid("a header is one of those that the client sets itself"));
        }
        builder = builder.header(name, value);
    }
    let body = Full::new(Bytes::from(request.body.clone()));
    builder.body(body).map_err(|_| FetchError::Invalid("the request is malformed"))
}

async fn send<S>(
    stream: S,
    message: Request<Full<Bytes>>,
    max_body: usize,
) -> std::result::Result<FetchResponse, FetchError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let failed = |error: hyper::Error| FetchError::Failed(error.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let exchange = async {
        let response = sender.send_request(message).await.map_err(failed)?;
        let (parts, mut incoming) = response.into_parts();
        let text =
            |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
        let headers = parts.headers.iter().filter_map(text).collect();
        let (mut body, mut truncated) = (Vec::new(), false);
        while let Some(frame) = incoming.frame().await {
            let Ok(data) = frame.map_err(failed)?.into_data() else { continue };
            let room = max_body - body.len();
            body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                truncated = true;
                break;
            }
        }
        Ok(FetchResponse { status: parts.status.as_u16(), headers, body, truncated })
    };
    tokio::pin!(connection);
    tokio::pin!(exchange);
    let mut is_open = true;
    loop {
        tokio::select! {
            result = &mut exchange => return result,
            ended = &mut connection, if is_open => {
                is_open = false;
                ended.map_err(failed)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn client(hosts: &[&str]) -> Client {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Client::new(&NetworkPolicy::Allow { hosts }).unwrap()
    }

    fn get(url: String) -> FetchRequest {
        FetchRequest { url, timeout: Duration::from_secs(20), max_body: 8, ..FetchRequest::default() }
    }

    /// Serves one response to each of `count` connections, and returns the first request.
    async fn serve(response: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let count = stream.read(&mut request).await.unwrap();
            stream.write_all(response.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..count]).into_owned()
        });
        (port, task)
    }

    #[tokio::test]
    async fn an_allowed_server_answers_and_a_long_body_is_cut_off() {
        let (port, served) = serve("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 10\r\n\r\n0123456789").await;
        let request = FetchRequest {
            headers: vec![("x-a".into(), "b".into())],
            method: "POST".into(),
            body: b"hi".to_vec(),
            ..get(format!("http://127.0.0.1:{port}/p?q"))
        };
        let response = client(&[&format!("127.0.0.1:{port}")]).fetch(request).await.unwrap();
        assert_eq!((response.status, response.truncated), (302, true));
        assert_eq!(response.body, b"01234567");
        let request = served.await.unwrap();
        assert!(request.starts_with("POST /p?q HTTP/1.1\r\n") && request.ends_with("hi"), "{request}");
    }

    #[tokio::test]
    async fn other_servers_are_denied_before_a_connection() {
        let (port, served) = serve("HTTP/1.1 200 OK\r\n\r\n").await;
        for url in [
            format!("http://127.0.0.1:{port}/"),
            format!("http://localhost:{port}/"),
            format!("http://[::ffff:127.0.0.1]:{port}/"),
            format!("http://2130706433:{port}/"),
            "https://a.example:444/".to_owned(),
            "https://b.example/".to_owned(),
        ] {
            let error = client(&["a.example:443"]).fetch(get(url.clone())).await.unwrap_err();
            assert!(matches!(error, FetchError::Denied { .. }), "{url}: {error:?}");
        }
        assert!(!served.is_finished());
        served.abort();
    }

    #[tokio::test]
    async fn malformed_requests_are_refused() {
        let client = client(&["a.example:443"]);
        for url in ["ftp://a.example/", "/x", "https://u:p@a.example/", "https:///x", "a b", ""] {
            assert!(matches!(client.fetch(get(url.into())).await, Err(FetchError::Invalid(_))), "{url}");
        }
        for (name, value) in [("host", "b"), ("Transfer-Encoding", "chunked"), ("a b", "c"), ("a", "b\r\nc: d")] {
            let headers = vec![(name.to_owned(), value.to_owned())];
            let request = FetchRequest { headers, ..get("https://a.example/".into()) };
            assert!(matches!(client.fetch(request).await, Err(FetchError::Invalid(_))), "{name}");
        }
        let request = FetchRequest { method: "CONNECT".into(), ..get("https://a.example/".into()) };
        assert!(matches!(client.fetch(request).await, Err(FetchError::Invalid(_))));
    }
}

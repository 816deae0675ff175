//! A client of the API, for the command line.

mod attach;
mod endpoint;
mod noticed;
mod tls_errors;
mod transport;
mod tunnel;
mod workspace;

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use cofferdam_contract::{Error, ErrorKind, Result};
use http_body_util::{BodyExt, Limited};
pub use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use hyper::{Request, Response, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use attach::{Attachment, Event, Input, Receiving, Sending};
use endpoint::Endpoint;
pub(crate) use endpoint::client_config as tls_config;
pub(crate) use noticed::noticed;
use transport::Transport;
pub use tunnel::Tunnel;

use crate::listen::TlsFiles;
use crate::rest::problem::Problem;
use crate::trace;

/// Bytes of an upload that are read at once.
const PIECE: usize = 64 << 10;
/// Time to connect.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time without any message of the server, which sends pings four times a minute, after which a connection is cut.
const SILENCE: Duration = Duration::from_secs(60);
/// The most bytes of an answer that is held in memory.
const MAX_ANSWER: usize = 32 << 20;

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Endpoint,
    transport: Transport,
    authorization: Option<HeaderValue>,
    trace: Option<HeaderValue>,
}

impl Client {
    /// Creates a client of the server at a URL, such as `https://host:8443`, `http://127.0.0.1:8080` or `unix:PATH`.
    /// `ca` is a PEM file of authorities to trust instead of those of this host.
    ///
    /// # Errors
    /// Those of [`Self::with`].
    pub fn new(url: &str, key: Option<&str>, ca: Option<&Path>) -> Result<Self> {
        Self::with(url, &Credentials { key, ca, certificate: None })
    }

    /// Creates a client of the server at a URL with credentials.
    ///
    /// # Errors
    /// - `InvalidInput` for another URL, for a key with other characters, for a key that other hosts could read, and for
    ///   files that cannot be used.
    /// - `Denied` for a private key that every user can read.
    pub fn with(url: &str, credentials: &Credentials<'_>) -> Result<Self> {
        let endpoint = Endpoint::parse(url, credentials)?;
        let authorization = credentials.key.map(|key| -> Result<HeaderValue> {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| Error::invalid("connect", "the key has characters that no key has"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        if authorization.is_some() && endpoint.is_readable_by_others() {
            return Err(Error::invalid("connect", "a key is not sent to another host without TLS")
                .with_remedy("use https:// and give the server a certificate"));
        }
        Ok(Self {
            transport: Transport::new(endpoint.clone()),
            endpoint,
            authorization: authorization.transpose()?,
            trace: None,
        })
    }

    /// Makes requests part of a trace: `parent` is a value of the header `traceparent`. A malformed one is ignored.
    #[must_use]
    pub fn traced(self, parent: &str) -> Self {
        let trace = HeaderValue::from_str(parent).ok().filter(|_| trace::is_valid(parent));
        Self { trace, ..self }
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// - `Unavailable` if the server does not answer.
    /// - The error that the server reports.
    pub async fn send(&self, method: Method, path: &str, content: Content) -> Result<Response<Incoming>> {
        self.send_with(method, path, content, None).await.map_err(|(_, error)| error)
    }

    /// Sends a request like [`Self::send`], over a connection of its own. The answer can be large or last long, and wait
    /// for its reader without stopping others.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub async fn send_alone(&self, method: Method, path: &str) -> Result<Response<Incoming>> {
        let alone = Some((CONNECTION, HeaderValue::from_static("close")));
        self.send_with(method, path, Content::None, alone).await.map_err(|(_, error)| error)
    }

    /// Sends a request with further headers, over a connection of its own if one is `Connection`. An error has the status of the answer, if there is one.
    pub(crate) async fn send_with(
        &self,
        method: Method,
        path: &str,
        content: Content,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)> + Send,
    ) -> std::result::Result<Response<Incoming>, (Option<StatusCode>, Error)> {
        let (kind, body, again) = match content {
            Content::None => (None, Body::empty(), Some(String::new())),
            Content::Json(text) => (Some("application/json"), Body::from(text.clone()), Some(text)),
            Content::Bytes(body) => (Some("application/octet-stream"), body, None),
        };
        let mut request = Request::builder().method(method).uri(self.endpoint.uri(path)).header(TE, "trailers");
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, kind);
        }
        for (name, value) in headers.into_iter().chain(self.own_headers()) {
            request = request.header(name, value);
        }
        let malformed = |error| Error::invalid("send request", "the request is malformed").with_source(error);
        let request = request.body(body).map_err(|error| (None, malformed(error)))?;
        // Uploads, too, have a connection of their own.
        let answer = match again.filter(|_| !request.headers().contains_key(CONNECTION)) {
            Some(text) => self.transport.send(request, Some(text)).await,
            None => self.transport.send_alone(request).await,
        };
        let response = answer.map_err(|error| (None, self.explained(error)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        Err((Some(status), failure(response).await))
    }

    /// Sends a request with a document whose answer has none.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub(crate) async fn call_unanswered(
        &self,
        method: Method,
        path: &str,
        document: &(impl Serialize + Sync),
    ) -> Result<()> {
        self.send(method, path, json(document)?).await.map(drop)
    }

    fn explained(&self, error: Error) -> Error {
        match error.remedy() {
            Some(_) => error,
            None => error
                .with_context("server", self.endpoint.to_string())
                .with_remedy("check the address, and that 'cofferdam serve' runs there"),
        }
    }

    fn unreachable(&self, message: &str) -> Error {
        Error::new(ErrorKind::Unavailable, "connect", message)
            .with_context("server", self.endpoint.to_string())
            .with_remedy("check the address, and that 'cofferdam serve' runs there")
    }

    /// Sends a request with a document, and returns the document of the answer.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        document: Option<&(impl Serialize + Sync)>,
    ) -> Result<T> {
        let content = match document {
            None => Content::None,
            Some(document) => json(document)?,
        };
        self.call_with(method, path, content).await
    }

    /// Sends a request with any content, and returns the document of the answer.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub async fn call_with<T: DeserializeOwned>(&self, method: Method, path: &str, content: Content) -> Result<T> {
        parsed(&read(self.send(method, path, content).await?).await?)
    }

    /// Sends a request like [`Self::call_with`] whose answer may have no document.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub async fn call_if_any<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: Content,
    ) -> Result<Option<T>> {
        let bytes = read(self.send(method, path, content).await?).await?;
        if bytes.is_empty() { Ok(None) } else { parsed(&bytes).map(Some) }
    }

    /// Returns the headers of all requests: the key, and the trace context.
    fn own_headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let own = [(AUTHORIZATION, &self.authorization), (HeaderName::from_static(trace::HEADER), &self.trace)];
        own.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)))
    }

    /// Returns true if the server is reached by a Unix socket, and so is on this host.
    pub fn is_on_socket(&self) -> bool {
        self.endpoint.is_socket()
    }
}

/// The credentials of a client.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The key, or a token.
    pub key: Option<&'a str>,
    /// A PEM file of authorities to trust instead of those of this host.
    pub ca: Option<&'a Path>,
    /// The client's certificate.
    pub certificate: Option<&'a TlsFiles>,
}

/// The body of a request.
#[derive(Debug)]
pub enum Content {
    /// No body.
    None,
    /// A JSON document.
    Json(String),
    /// Bytes.
    Bytes(Body),
}

impl Content {
    /// Returns the content that a reader has.
    pub fn reader(from: impl tokio::io::AsyncRead + Send + 'static) -> Self {
        Self::Bytes(Body::from_stream(tokio_util::io::ReaderStream::with_capacity(from, PIECE)))
    }
}

/// The bytes of an answer, as they arrive.
#[derive(Debug)]
pub struct Transfer {
    body: Incoming,
    trailers: Option<HeaderMap>,
}

impl Transfer {
    /// Starts to read an answer.
    pub fn of(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), trailers: None }
    }

    /// Waits for the next bytes. Returns `None` at the end.
    ///
    /// # Errors
    /// - `Unavailable` if the answer ends early.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(foreign("the answer ended early").with_source(error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }

    /// Returns a trailer, after the end.
    pub fn trailer(&self, name: &str) -> Option<&HeaderValue> {
        self.trailers.as_ref()?.get(name)
    }
}

fn json(document: &(impl Serialize + Sync)) -> Result<Content> {
    let text = serde_json::to_string(document).map_err(|error| {
        Error::new(ErrorKind::Internal, "send request", "cannot write the request").with_source(error)
    });
    Ok(Content::Json(text?))
}

/// Does work in a task of its own, so that its result exists even if the caller gives up, and is then dropped.
pub(crate) async fn detached<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, operation, "the request was interrupted")))
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| foreign("the answer is not that of this API").with_source(error))
}

/// Encodes a part of a path or query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn foreign(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "read answer", message)
        .with_remedy("check that the server is 'cofferdam serve' of this version")
}

/// Reads a whole answer.
async fn read(response: Response<Incoming>) -> Result<bytes::Bytes> {
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    Ok(body.map_err(|_| foreign("the answer ended early or is too large"))?.to_bytes())
}

/// Returns the error of an answer.
async fn failure(response: Response<Incoming>) -> Error {
    let status = response.status();
    match read(response).await.ok().and_then(|bytes| serde_json::from_slice::<Problem>(&bytes).ok()) {
        Some(problem) => problem.into_error(),
        None => foreign(&format!("the server answered {status}")),
    }
}

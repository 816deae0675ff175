//! Requests over one HTTP/2 connection, which is opened again when it has ended. A proxy that speaks only HTTP/1.1 gets a
//! connection for each request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use cofferdam_contract::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Mutex;

use super::CONNECT_TIME;
use super::endpoint::{Endpoint, Protocol};
use super::tls_errors::tls_error;

/// The interval of pings on a connection, and the time for their answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// The time for a connection to end after a request on it was given up.
const ENDING_TIME: Duration = Duration::from_secs(1);

/// The connection of a client, which its copies share.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    endpoint: Endpoint,
    shared: Arc<Mutex<Option<Multiplexed>>>,
}

/// A connection over which many requests are sent at once.
type Multiplexed = (http2::SendRequest<Body>, Ended);

enum Sender {
    Shared(http2::SendRequest<Body>, Ended),
    Single(http1::SendRequest<Body>, Ended),
}

/// The error with which a connection ends, such as an alert of TLS. Its requests only learn that it ended.
type Ended = Shared<BoxFuture<'static, Option<Arc<hyper::Error>>>>;

/// Runs a connection.
fn run(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> Ended {
    let running = tokio::spawn(connection);
    async move { running.await.ok().and_then(|ended| ended.err()).map(Arc::new) }.boxed().shared()
}

impl Transport {
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, shared: Arc::default() }
    }

    /// Sends a request. `again` is its body as text, if it can be sent again because a connection ended before.
    pub async fn send(&self, request: Request<Body>, again: Option<String>) -> Result<Response<Incoming>> {
        let (parts, body) = request.into_parts();
        let sent = self.send_once(Request::from_parts(parts.clone(), body)).await;
        let error = match sent {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        match again.filter(|_| is_unsent(&error)) {
            Some(text) => Ok(self.send_once(Request::from_parts(parts, Body::from(text))).await.map_err(unanswered)?),
            None => Err(unanswered(error)),
        }
    }

    /// Sends a request over a connection of its own, whose body can be large or last long, and wait for its reader.
    pub async fn send_alone(&self, request: Request<Body>) -> Result<Response<Incoming>> {
        let sender = self.connect(Protocol::Http1).await?;
        Self::send_by(&self.endpoint, sender, request).await.map_err(unanswered)
    }

    async fn send_once(&self, request: Request<Body>) -> std::result::Result<Response<Incoming>, Failed> {
        let sender = self.sender().await.map_err(Failed::Connect)?;
        Self::send_by(&self.endpoint, sender, request).await
    }

    async fn send_by(
        endpoint: &Endpoint,
        sender: Sender,
        mut request: Request<Body>,
    ) -> std::result::Result<Response<Incoming>, Failed> {
        let (sent, ended) = match sender {
            Sender::Shared(mut sender, ended) => {
                *request.version_mut() = Version::HTTP_2;
                (answered(sender.send_request(request), &ended).await?, ended)
            }
            Sender::Single(mut sender, ended) => {
                let authority = HeaderValue::try_from(endpoint.authority());
                if let Ok(authority) = authority {
                    request.headers_mut().insert(HOST, authority);
                }
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse();
                *request.uri_mut() = path.unwrap_or_default();
                (answered(sender.send_request(request), &ended).await?, ended)
            }
        };
        match sent {
            Ok(response) => Ok(response),
            Err(error) if error.is_canceled() || error.is_closed() => {
                let reason = tokio::time::timeout(ENDING_TIME, ended).await.ok().flatten();
                Err(Failed::Http(error, reason))
            }
            Err(error) => Err(Failed::Http(error, None)),
        }
    }

    async fn sender(&self) -> Result<Sender> {
        let mut shared = self.shared.lock().await;
        if let Some((sender, ended)) = shared.as_ref().filter(|(sender, _)| !sender.is_closed()) {
            return Ok(Sender::Shared(sender.clone(), ended.clone()));
        }
        let sender = self.connect(Protocol::Any).await?;
        if let Sender::Shared(sender, ended) = &sender {
            *shared = Some((sender.clone(), ended.clone()));
        }
        Ok(sender)
    }

    async fn connect(&self, wanted: Protocol) -> Result<Sender> {
        let late = || Error::new(ErrorKind::Unavailable, "connect", "the server did not answer in time");
        let connected = tokio::time::timeout(CONNECT_TIME, self.endpoint.connect_for(wanted));
        let (stream, protocol) = connected.await.map_err(|_| late())??;
        let failed = |error: hyper::Error| {
            let plain = || Error::new(ErrorKind::Unavailable, "connect", "cannot speak to the server");
            tls_error(&error).unwrap_or_else(plain).with_source(error)
        };
        if protocol == Protocol::Http1 {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
            return Ok(Sender::Single(sender, run(connection)));
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // Answers here are small: large and lasting ones have connections of their own.
        builder.timer(TokioTimer::new()).initial_stream_window_size(1 << 20).initial_connection_window_size(1 << 30);
        builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_INTERVAL);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failed)?;
        Ok(Sender::Shared(sender, run(connection)))
    }
}

/// Waits for an answer. A connection that has ended gives none, even if the request was not notified.
async fn answered<T>(sending: impl Future<Output = T>, ended: &Ended) -> std::result::Result<T, Failed> {
    let ending = async {
        let reason = ended.clone().await;
        tokio::time::sleep(ENDING_TIME).await;
        reason
    };
    tokio::select! {
        biased;
        answer = sending => Ok(answer),
        reason = ending => Err(Failed::Ended(reason)),
    }
}

enum Failed {
    Connect(Error),
    /// The error of a connection that ended without telling its request.
    Ended(Option<Arc<hyper::Error>>),
    /// The error of a request, and that of its connection.
    Http(hyper::Error, Option<Arc<hyper::Error>>),
}

/// Returns true if the server did not begin to handle the request.
fn is_unsent(error: &Failed) -> bool {
    match error {
        Failed::Connect(_) | Failed::Ended(_) => false,
        Failed::Http(error, _) => {
            let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
            let mut is_refused = false;
            while let Some(error) = source {
                is_refused |= format!("{error:?}").contains("REFUSED_STREAM");
                source = error.source();
            }
            error.is_canceled() || is_refused
        }
    }
}

fn unanswered(error: Failed) -> Error {
    match error {
        Failed::Connect(error) => error,
        Failed::Ended(reason) => reason.as_deref().and_then(|reason| tls_error(reason)).unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, "connect", "the server gave no answer, and the connection ended")
        }),
        Failed::Http(error, reason) => match tls_error(&error).or_else(|| tls_error(reason.as_deref()?)) {
            Some(known) => known.with_source(error),
            None => Error::new(ErrorKind::Unavailable, "connect", "the server gave no answer").with_source(error),
        },
    }
}

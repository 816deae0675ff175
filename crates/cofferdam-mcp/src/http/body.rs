//! Bodies of requests with a deadline, so that a client that sends a byte now and then cannot occupy resources for
//! long. Bodies of answers, which mark their connection as idle when they end.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use super::connections::Connection;

/// Timeout for receiving a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// A body with a deadline.
pub struct Timed {
    inner: Incoming,
    deadline: Pin<Box<Sleep>>,
    connection: Arc<Connection>,
}

impl Timed {
    /// Starts the timeout. Notifies the connection when the body is complete.
    pub fn new(inner: Incoming, connection: Arc<Connection>) -> Self {
        Self { inner, deadline: Box::pin(sleep(BODY_TIMEOUT)), connection }
    }
}

/// The reason why a body ended early.
#[derive(Debug)]
pub enum Broken {
    /// The connection failed.
    Connection(hyper::Error),
    /// The body timed out.
    TooSlow,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::TooSlow => write!(f, "the body did not arrive within {BODY_TIMEOUT:?}"),
        }
    }
}

impl Body for Timed {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Broken::TooSlow)));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(context).map_err(Broken::Connection);
        if polled.is_ready() && self.inner.is_end_stream() {
            self.connection.serve();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer. Dropping it marks its connection as idle.
pub struct Answering {
    inner: BoxBody<Bytes, Infallible>,
    connection: Arc<Connection>,
}

impl Answering {
    /// Creates the body of an answer on this connection.
    pub fn new(inner: BoxBody<Bytes, Infallible>, connection: Arc<Connection>) -> Self {
        Self { inner, connection }
    }
}

impl Body for Answering {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.connection.rest();
    }
}

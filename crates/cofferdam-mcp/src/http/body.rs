//! Bodies of requests that must come within a time: who sends a byte now and then holds nothing for long.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

/// How long a body may take.
const WHOLE: Duration = Duration::from_secs(60);

/// A body with a deadline.
pub struct Timed {
    inner: Incoming,
    deadline: Pin<Box<Sleep>>,
}

impl Timed {
    /// The time begins now.
    pub fn new(inner: Incoming) -> Self {
        Self { inner, deadline: Box::pin(sleep(WHOLE)) }
    }
}

/// Why a body ended early.
#[derive(Debug)]
pub enum Broken {
    /// The connection failed.
    Connection(hyper::Error),
    /// It took too long.
    TooSlow,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::TooSlow => write!(f, "the body did not come within {WHOLE:?}"),
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
        Pin::new(&mut self.inner).poll_frame(context).map_err(Broken::Connection)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

//! Large bodies of requests, with a limit on their size and on each pause.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use cofferdam_contract::Error;
use futures_core::Stream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::extract::{too_large, too_slow};
use super::problem::Failure;

const GOOD: u8 = 0;
const TOO_LARGE: u8 = 1;
const TOO_SLOW: u8 = 2;
const BROKEN: u8 = 3;

/// A body with a limit on its size and on each pause.
pub struct Upload {
    inner: axum::body::BodyDataStream,
    left: u64,
    stall: Duration,
    pause: Pin<Box<Sleep>>,
    state: Arc<AtomicU8>,
    progress: Arc<Notify>,
}

/// The observer of an upload.
pub struct Watch {
    max: u64,
    state: Arc<AtomicU8>,
    progress: Arc<Notify>,
}

impl Watch {
    /// Returns true unless the body itself has failed.
    pub fn is_good(&self) -> bool {
        self.state.load(Ordering::SeqCst) == GOOD
    }

    /// Waits until more of the body was read.
    pub async fn progress(&self) {
        self.progress.notified().await;
    }

    /// Returns the outcome of work with the body: the body's own failure, if it has one.
    pub fn outcome<T>(&self, done: Result<T, Error>) -> Result<T, Failure> {
        match (done, self.state.load(Ordering::SeqCst)) {
            (Err(_), TOO_LARGE) => Err(too_large(self.max)),
            (Err(_), TOO_SLOW) => Err(too_slow()),
            (Err(_), BROKEN) => Err(Failure::bad_request("the body ended early")),
            (done, _) => Ok(done?),
        }
    }
}

impl Upload {
    /// Reads a body of at most `max` bytes, which pauses at most for `stall`.
    pub fn new(body: Body, max: u64, stall: Duration) -> (Self, Watch) {
        let state = Arc::new(AtomicU8::new(GOOD));
        let progress = Arc::new(Notify::new());
        let watch = Watch { max, state: Arc::clone(&state), progress: Arc::clone(&progress) };
        let pause = Box::pin(tokio::time::sleep(stall));
        (Self { inner: body.into_data_stream(), left: max, stall, pause, state, progress }, watch)
    }

    fn fail(&self, state: u8) -> io::Error {
        self.state.store(state, Ordering::SeqCst);
        io::Error::other("the upload failed")
    }
}

impl Stream for Upload {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let polled = Pin::new(&mut self.inner).poll_next(context);
        let ready = match polled {
            Poll::Pending => {
                return match self.pause.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(self.fail(TOO_SLOW)))),
                    Poll::Pending => Poll::Pending,
                };
            }
            Poll::Ready(ready) => ready,
        };
        self.progress.notify_one();
        let next = Instant::now() + self.stall;
        self.pause.as_mut().reset(next);
        Poll::Ready(match ready {
            None => None,
            Some(Err(_)) => Some(Err(self.fail(BROKEN))),
            Some(Ok(data)) => Some(match self.left.checked_sub(data.len() as u64) {
                Some(left) => {
                    self.left = left;
                    Ok(data)
                }
                None => Err(self.fail(TOO_LARGE)),
            }),
        })
    }
}

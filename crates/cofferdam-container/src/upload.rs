//! Uploads of images to an engine, which answers only after all bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use tokio::time::{Instant, sleep_until};

use crate::engine::Engine;
use crate::error::Failed;
use crate::stream::{self, next};

/// Reads the engine's answers to an import. They come after all bytes, so until then a stall is detected by the bytes.
pub(crate) async fn read_answers<T>(
    engine: &Engine,
    answers: impl Stream<Item = Result<T, bollard::errors::Error>>,
    moved: &AtomicU64,
) -> Result<(), Failed> {
    let mut answers = Box::pin(answers);
    let stall = engine.deadlines.stall;
    let (mut seen, mut until) = (0, Instant::now() + stall);
    loop {
        tokio::select! {
            answer = next(&mut answers) => match answer {
                Some(Ok(_)) => until = Instant::now() + stall,
                Some(Err(answer)) => return Err(Failed::Answered(answer)),
                None => return Ok(()),
            },
            () = sleep_until(until) => {
                let now = moved.load(Ordering::Relaxed);
                if now == seen {
                    return Err(Failed::Silent(stall));
                }
                (seen, until) = (now, Instant::now() + stall);
            }
        }
    }
}

/// A request body that counts how often the engine reads from it.
pub(crate) struct CountingBody {
    body: stream::Body,
    moved: Arc<AtomicU64>,
}

impl CountingBody {
    /// Creates a body that counts in `moved`.
    pub(crate) fn new(body: stream::Body, moved: Arc<AtomicU64>) -> Self {
        Self { body, moved }
    }
}

impl Stream for CountingBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.moved.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.body).poll_next(context)
    }
}

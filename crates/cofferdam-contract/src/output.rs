//! Live output: hot, bounded, multicast.
//!
//! Chunks go into one ring of bounded size per exec. Each subscription has its own place in it. A subscriber that is
//! slower than the ring is deep loses the oldest chunks and is told how many; neither the process nor the other
//! subscribers wait for it. Nothing is replayed to those who come late.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_core::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which stream a chunk was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputStream {
    /// Standard output; in a terminal, everything.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Bytes that a process wrote, as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Where it was written.
    pub stream: OutputStream,
    /// What was written; never empty.
    pub data: Bytes,
}

/// What a subscriber receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// The next chunk.
    Chunk(Chunk),
    /// The subscriber was too slow: these many chunks, with these many bytes, are gone.
    Lost {
        /// Chunks lost.
        chunks: u64,
        /// Bytes lost.
        bytes: u64,
    },
}

#[derive(Debug)]
struct Ring {
    chunks: VecDeque<Chunk>,
    /// Number and byte offset of the oldest chunk kept.
    first: Position,
    /// Number and byte offset one past the newest chunk.
    next: Position,
    capacity: usize,
    remaining: u64,
    seen: u64,
    truncated: bool,
    closed: bool,
    wakers: Vec<(u64, Waker)>,
    subscribers: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    chunk: u64,
    byte: u64,
}

impl Ring {
    fn push(&mut self, chunk: Chunk) {
        self.next = Position { chunk: self.next.chunk + 1, byte: self.next.byte + chunk.data.len() as u64 };
        self.chunks.push_back(chunk);
        // The newest chunk always stays, so that a capacity below one chunk still delivers.
        while self.chunks.len() > 1 && self.next.byte - self.first.byte > self.capacity as u64 {
            if let Some(old) = self.chunks.pop_front() {
                self.first = Position { chunk: self.first.chunk + 1, byte: self.first.byte + old.data.len() as u64 };
            }
        }
    }

    fn wake(&mut self) {
        for (_, waker) in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // A panic while holding the lock leaves plain numbers behind that are still consistent.
    ring.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The writing end, held by the backend.
#[derive(Debug)]
pub struct Publisher {
    ring: Arc<Mutex<Ring>>,
}

impl Publisher {
    /// A ring of `capacity` bytes that passes on `max_output` bytes and drops the rest.
    pub fn new(capacity: usize, max_output: u64) -> Self {
        Self {
            ring: Arc::new(Mutex::new(Ring {
                chunks: VecDeque::new(),
                first: Position { chunk: 0, byte: 0 },
                next: Position { chunk: 0, byte: 0 },
                capacity,
                remaining: max_output,
                seen: 0,
                truncated: false,
                closed: false,
                wakers: Vec::new(),
                subscribers: 0,
            })),
        }
    }

    /// Passes `data` on, cut at the output limit; never waits.
    pub fn publish(&self, stream: OutputStream, mut data: Bytes) {
        let mut ring = lock(&self.ring);
        ring.seen += data.len() as u64;
        if data.len() as u64 > ring.remaining {
            data.truncate(ring.remaining as usize);
            ring.truncated = true;
        }
        ring.remaining -= data.len() as u64;
        if !data.is_empty() && !ring.closed {
            ring.push(Chunk { stream, data });
            ring.wake();
        }
    }

    /// Counts bytes that were dropped at the same limit before they came here.
    pub fn count_dropped(&self, bytes: u64) {
        let mut ring = lock(&self.ring);
        ring.seen += bytes;
        ring.truncated |= bytes > 0;
    }

    /// Tells every subscriber that these chunks were lost before they came here. What is kept still is lost with them:
    /// who is so slow that this happens has no use for a middle without its end.
    pub fn lose(&self, chunks: u64, bytes: u64) {
        let mut ring = lock(&self.ring);
        ring.seen += bytes;
        ring.remaining = ring.remaining.saturating_sub(bytes);
        ring.chunks.clear();
        ring.next = Position { chunk: ring.next.chunk + chunks, byte: ring.next.byte + bytes };
        ring.first = ring.next;
        ring.wake();
    }

    /// Bytes written by the process so far, the dropped ones included.
    pub fn bytes_seen(&self) -> u64 {
        lock(&self.ring).seen
    }

    /// Whether output was dropped at the limit.
    pub fn truncated(&self) -> bool {
        lock(&self.ring).truncated
    }

    /// Ends the stream for every subscriber once each has read what is kept.
    pub fn close(&self) {
        let mut ring = lock(&self.ring);
        ring.closed = true;
        ring.wake();
    }

    /// A subscription to what comes from now on.
    pub fn subscribe(&self) -> OutputSubscription {
        OutputSubscription::new(Arc::clone(&self.ring))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}

/// One reader's place in the output.
#[derive(Debug)]
pub struct OutputSubscription {
    ring: Arc<Mutex<Ring>>,
    at: Position,
    id: u64,
}

impl OutputSubscription {
    fn new(ring: Arc<Mutex<Ring>>) -> Self {
        let (at, id) = {
            let mut locked = lock(&ring);
            locked.subscribers += 1;
            (locked.next, locked.subscribers)
        };
        Self { ring, at, id }
    }

    /// Another subscription, to what comes from now on.
    pub fn resubscribe(&self) -> Self {
        Self::new(Arc::clone(&self.ring))
    }

    /// The next event; `None` once the exec has ended and everything kept was read.
    pub async fn next(&mut self) -> Option<OutputEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<OutputEvent> {
        let ring = Arc::clone(&self.ring);
        self.take(&lock(&ring))
    }

    fn take(&mut self, ring: &Ring) -> Option<OutputEvent> {
        if self.at.chunk < ring.first.chunk {
            let event =
                OutputEvent::Lost { chunks: ring.first.chunk - self.at.chunk, bytes: ring.first.byte - self.at.byte };
            self.at = ring.first;
            return Some(event);
        }
        let chunk = ring.chunks.get((self.at.chunk - ring.first.chunk) as usize)?.clone();
        self.at = Position { chunk: self.at.chunk + 1, byte: self.at.byte + chunk.data.len() as u64 };
        Some(OutputEvent::Chunk(chunk))
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<OutputEvent>> {
        let shared = Arc::clone(&self.ring);
        let mut ring = lock(&shared);
        if let Some(event) = self.take(&ring) {
            return Poll::Ready(Some(event));
        }
        if ring.closed {
            return Poll::Ready(None);
        }
        match ring.wakers.iter_mut().find(|(id, _)| *id == self.id) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => ring.wakers.push((self.id, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for OutputSubscription {
    fn drop(&mut self) {
        lock(&self.ring).wakers.retain(|(id, _)| *id != self.id);
    }
}

impl Stream for OutputSubscription {
    type Item = OutputEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<OutputEvent>> {
        self.poll_event(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn publish(publisher: &Publisher, text: &'static str) {
        publisher.publish(OutputStream::Stdout, Bytes::from_static(text.as_bytes()));
    }

    fn chunk(text: &'static str) -> Option<OutputEvent> {
        Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data: Bytes::from_static(text.as_bytes()) }))
    }

    #[tokio::test]
    async fn a_late_subscriber_gets_only_what_comes() {
        let publisher = Publisher::new(100, 100);
        let mut early = publisher.subscribe();
        publish(&publisher, "a");
        let mut late = publisher.subscribe();
        publish(&publisher, "b");
        publisher.close();
        assert_eq!(early.next().await, chunk("a"));
        assert_eq!(early.next().await, chunk("b"));
        assert_eq!(early.next().await, None);
        assert_eq!(late.next().await, chunk("b"));
        assert_eq!(late.next().await, None);
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_what_it_lost() {
        let publisher = Publisher::new(4, 100);
        let mut slow = publisher.subscribe();
        for text in ["ab", "cd", "ef", "gh"] {
            publish(&publisher, text);
        }
        assert_eq!(slow.next().await, Some(OutputEvent::Lost { chunks: 2, bytes: 4 }));
        assert_eq!(slow.next().await, chunk("ef"));
        assert_eq!(slow.next().await, chunk("gh"));
    }

    #[tokio::test]
    async fn output_is_cut_at_exactly_the_limit() {
        let publisher = Publisher::new(100, 3);
        let mut reader = publisher.subscribe();
        publish(&publisher, "ab");
        assert!(!publisher.truncated());
        publish(&publisher, "cd");
        publish(&publisher, "ef");
        assert!(publisher.truncated());
        assert_eq!(publisher.bytes_seen(), 6);
        publisher.close();
        assert_eq!(reader.next().await, chunk("ab"));
        assert_eq!(reader.next().await, chunk("c"));
        assert_eq!(reader.next().await, None);
    }

    #[tokio::test]
    async fn what_was_lost_or_dropped_elsewhere_counts_here() {
        let publisher = Publisher::new(100, 10);
        let mut reader = publisher.subscribe();
        publish(&publisher, "ab");
        publisher.lose(2, 5);
        publish(&publisher, "cdefgh");
        publisher.count_dropped(0);
        assert_eq!(reader.next().await, Some(OutputEvent::Lost { chunks: 3, bytes: 7 }));
        assert_eq!(reader.next().await, chunk("cde"));
        publisher.count_dropped(20);
        assert_eq!(publisher.bytes_seen(), 33);
        assert!(publisher.truncated());
    }

    proptest! {
        #[test]
        fn read_and_lost_bytes_add_up(capacity in 1usize..50, steps in prop::collection::vec((0u8..3, 1usize..20), 1..60)) {
            let publisher = Publisher::new(capacity, u64::MAX);
            let mut reader = publisher.subscribe();
            let (mut written, mut got) = (0u64, 0u64);
            let mut count = |event| match event {
                OutputEvent::Chunk(chunk) => got += chunk.data.len() as u64,
                OutputEvent::Lost { bytes, .. } => got += bytes,
            };
            for (kind, size) in steps {
                if kind > 0 {
                    publisher.publish(OutputStream::Stderr, Bytes::from(vec![0; size]));
                    written += size as u64;
                } else if let Some(event) = reader.try_next() {
                    count(event);
                }
            }
            while let Some(event) = reader.try_next() {
                count(event);
            }
            prop_assert_eq!(written, got);
        }
    }
}

//! Bounded multicast delivery of live output.
//!
//! Output goes into one ring buffer of bounded size per exec. Each subscription has its own position in it. A
//! subscriber that falls behind by more than the ring's capacity loses the oldest bytes and receives the number of lost
//! bytes. Neither the process nor other subscribers wait for it. Late subscribers receive no replay.
//!
//! The ring costs the host at most twice its capacity, independent of the size of the writes. Consecutive bytes of one
//! stream form one run, and the number of runs is bounded as well. A process that writes single bytes costs no more
//! than one that writes megabytes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_core::Stream;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stream that a chunk was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputStream {
    /// Standard output. With a terminal, standard output and standard error together.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Consecutive bytes that a process wrote to one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The stream that the bytes were written to.
    pub stream: OutputStream,
    /// The bytes; never empty.
    pub data: Bytes,
}

/// An event of an output subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// The next chunk.
    Chunk(Chunk),
    /// A gap: the subscriber was too slow, and the oldest output was dropped.
    Lost {
        /// Runs of consecutive bytes of one stream that were lost completely or in part.
        chunks: u64,
        /// Bytes lost.
        bytes: u64,
    },
}

/// The most bytes in one delivered chunk.
const MAX_CHUNK: u64 = 256 * 1024;
/// The number of runs that a ring of any capacity may hold.
const MIN_RUNS: usize = 256;

/// Consecutive bytes of one stream.
#[derive(Debug)]
struct Run {
    stream: OutputStream,
    /// The offset one past the run's last byte.
    end: u64,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    runs: VecDeque<Run>,
    /// The number of the oldest run in the ring, and the offset of the oldest byte.
    first: Position,
    /// The offset one past the newest byte.
    next: u64,
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
    run: u64,
    byte: u64,
}

impl Ring {
    fn push(&mut self, stream: OutputStream, data: &[u8]) {
        // The newest write is always stored, so that output is delivered even if the capacity is smaller than one
        // write.
        let room = self.capacity.saturating_sub(data.len());
        self.drop_oldest(self.bytes.len().saturating_sub(room));
        self.reserve(data.len());
        self.bytes.extend(data);
        self.next += data.len() as u64;
        match self.runs.back_mut() {
            Some(run) if run.stream == stream => run.end = self.next,
            _ => self.runs.push_back(Run { stream, end: self.next }),
        }
        while self.runs.len() > self.max_runs() {
            self.drop_oldest((self.runs[0].end - self.first.byte) as usize);
        }
    }

    /// Returns the maximum number of runs, chosen so that they cost at most half of what the bytes may.
    fn max_runs(&self) -> usize {
        (self.capacity / (2 * size_of::<Run>())).max(MIN_RUNS)
    }

    /// Reserves space for `more` bytes without doubling beyond the capacity.
    fn reserve(&mut self, more: usize) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let wanted = needed.max((self.bytes.capacity() * 2).min(self.capacity));
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    fn drop_oldest(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.first.byte += count as u64;
        while self.runs.front().is_some_and(|run| run.end <= self.first.byte) {
            self.runs.pop_front();
            self.first.run += 1;
        }
    }

    /// Returns the position of the next byte to be written.
    fn end(&self) -> Position {
        // The newest run may still grow, so a new subscriber starts in it.
        Position { run: self.first.run + self.runs.len().saturating_sub(1) as u64, byte: self.next }
    }

    /// Returns the position of the byte at `offset`, or of the end if there is no such byte.
    fn position(&self, offset: u64) -> Position {
        let before = self.runs.partition_point(|run| run.end <= offset);
        if before == self.runs.len() {
            return self.end();
        }
        Position { run: self.first.run + before as u64, byte: offset }
    }

    /// Copies `count` bytes out, starting `from` bytes after the oldest byte.
    fn copy(&self, from: usize, count: usize) -> Bytes {
        let (front, back) = self.bytes.as_slices();
        let in_front = &front[from.min(front.len())..(from + count).min(front.len())];
        let in_back = &back[from.saturating_sub(front.len())..(from + count).saturating_sub(front.len())];
        if in_back.is_empty() { Bytes::copy_from_slice(in_front) } else { [in_front, in_back].concat().into() }
    }

    fn wake(&mut self) {
        for (_, waker) in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

/// The writing end of an exec's output, owned by the backend.
#[derive(Debug)]
pub struct Publisher {
    ring: Arc<Mutex<Ring>>,
}

impl Publisher {
    /// Creates a ring buffer of `capacity` bytes that delivers `max_output` bytes in total and drops the rest.
    pub fn new(capacity: usize, max_output: u64) -> Self {
        Self {
            ring: Arc::new(Mutex::new(Ring {
                bytes: VecDeque::new(),
                runs: VecDeque::new(),
                first: Position { run: 0, byte: 0 },
                next: 0,
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

    /// Copies `data` into the ring, truncated at the output limit. Never blocks.
    pub fn publish(&self, stream: OutputStream, data: impl AsRef<[u8]>) {
        let mut data = data.as_ref();
        let mut ring = self.ring.lock();
        ring.seen += data.len() as u64;
        if data.len() as u64 > ring.remaining {
            data = &data[..ring.remaining as usize];
            ring.truncated = true;
        }
        ring.remaining -= data.len() as u64;
        if !data.is_empty() && !ring.closed {
            ring.push(stream, data);
            ring.wake();
        }
    }

    /// Counts bytes that were already dropped at the output limit before they reached this publisher.
    pub fn count_dropped(&self, bytes: u64) {
        let mut ring = self.ring.lock();
        ring.seen += bytes;
        ring.truncated |= bytes > 0;
    }

    /// Reports to every subscriber that `chunks` chunks with `bytes` bytes were lost before they reached this
    /// publisher. Buffered output is dropped as well, because a subscriber that is so slow has no use for a middle part
    /// without its end.
    pub fn lose(&self, chunks: u64, bytes: u64) {
        let mut ring = self.ring.lock();
        ring.seen += bytes;
        ring.remaining = ring.remaining.saturating_sub(bytes);
        let retained = ring.bytes.len();
        ring.drop_oldest(retained);
        ring.next += bytes;
        ring.first = Position { run: ring.first.run + chunks, byte: ring.next };
        ring.wake();
    }

    /// Returns the number of bytes that the process has written so far, including dropped bytes.
    pub fn bytes_seen(&self) -> u64 {
        self.ring.lock().seen
    }

    /// Returns true if output was dropped at the output limit.
    pub fn truncated(&self) -> bool {
        self.ring.lock().truncated
    }

    /// Ends the stream for each subscriber after it has read the buffered output.
    pub fn close(&self) {
        let mut ring = self.ring.lock();
        ring.closed = true;
        ring.wake();
    }

    /// Subscribes to the output from now on.
    pub fn subscribe(&self) -> OutputSubscription {
        OutputSubscription::new(Arc::clone(&self.ring))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}

/// A reader's position in the output.
#[derive(Debug)]
pub struct OutputSubscription {
    ring: Arc<Mutex<Ring>>,
    at: Position,
    id: u64,
}

impl OutputSubscription {
    fn new(ring: Arc<Mutex<Ring>>) -> Self {
        let (at, id) = {
            let mut locked = ring.lock();
            locked.subscribers += 1;
            (locked.end(), locked.subscribers)
        };
        Self { ring, at, id }
    }

    /// Creates another subscription to the output from now on.
    pub fn resubscribe(&self) -> Self {
        Self::new(Arc::clone(&self.ring))
    }

    /// Creates another subscription that starts at a byte offset. See [`crate::ExecHandle::output_from`].
    pub(crate) fn resubscribe_from(&self, offset: u64) -> Self {
        let mut subscription = Self::new(Arc::clone(&self.ring));
        subscription.at = self.ring.lock().position(offset);
        subscription
    }

    /// Returns the offset of the next byte: the number of bytes of both streams before it.
    pub fn offset(&self) -> u64 {
        self.at.byte
    }

    /// Waits for the next event. Returns `None` after the exec has ended and all buffered output was read.
    pub async fn next(&mut self) -> Option<OutputEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Returns the next event if one is available.
    pub fn try_next(&mut self) -> Option<OutputEvent> {
        let ring = Arc::clone(&self.ring);
        self.take(&ring.lock())
    }

    fn take(&mut self, ring: &Ring) -> Option<OutputEvent> {
        if self.at.byte < ring.first.byte {
            let chunks = (ring.first.run - self.at.run).max(1);
            let event = OutputEvent::Lost { chunks, bytes: ring.first.byte - self.at.byte };
            self.at = ring.first;
            return Some(event);
        }
        // The ring may have dropped everything that was already read.
        let mut number = self.at.run.max(ring.first.run);
        let mut run = ring.runs.get((number - ring.first.run) as usize)?;
        if self.at.byte >= run.end {
            number += 1;
            run = ring.runs.get((number - ring.first.run) as usize)?;
        }
        let count = (run.end - self.at.byte).min(MAX_CHUNK);
        let data = ring.copy((self.at.byte - ring.first.byte) as usize, count as usize);
        self.at = Position { run: number, byte: self.at.byte + count };
        Some(OutputEvent::Chunk(Chunk { stream: run.stream, data }))
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<OutputEvent>> {
        let shared = Arc::clone(&self.ring);
        let mut ring = shared.lock();
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
        self.ring.lock().wakers.retain(|(id, _)| *id != self.id);
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

    /// Promise (Contract): A late subscriber receives no earlier output.
    #[tokio::test]
    async fn late_subscriber_receives_only_later_output() {
        let publisher = Publisher::new(100, 100);
        let mut early = publisher.subscribe();
        publish(&publisher, "a");
        let mut late = publisher.subscribe();
        publish(&publisher, "b");
        publisher.close();
        assert_eq!(early.next().await, chunk("ab"));
        assert_eq!(early.next().await, None);
        assert_eq!(late.next().await, chunk("b"));
        assert_eq!(late.next().await, None);
    }

    /// Promise (Contract): A slow subscriber loses the oldest chunks and learns how many it lost.
    #[tokio::test]
    async fn a_slow_subscriber_gets_the_number_of_lost_chunks() {
        let publisher = Publisher::new(4, 100);
        let mut slow = publisher.subscribe();
        for text in ["ab", "cd", "ef", "gh"] {
            publish(&publisher, text);
        }
        assert_eq!(slow.next().await, Some(OutputEvent::Lost { chunks: 1, bytes: 4 }));
        assert_eq!(slow.next().await, chunk("efgh"));
    }

    /// Promise (Contract): A reader that comes back continues at its offset, and learns what it lost meanwhile.
    #[test]
    fn a_reader_continues_at_any_offset() {
        let publisher = Publisher::new(6, 100);
        let reader = publisher.subscribe();
        publish(&publisher, "ab");
        publisher.publish(OutputStream::Stderr, Bytes::from_static(b"cd"));
        publish(&publisher, "ef");
        let from = |offset| {
            let mut again = reader.resubscribe_from(offset);
            let mut bytes = Vec::new();
            let mut lost = 0;
            while let Some(event) = again.try_next() {
                match event {
                    OutputEvent::Chunk(chunk) => bytes.extend_from_slice(&chunk.data),
                    OutputEvent::Lost { bytes, .. } => lost += bytes,
                }
            }
            assert_eq!(again.offset(), reader.ring.lock().next);
            (lost, String::from_utf8(bytes).unwrap())
        };
        for offset in 0..=6 {
            assert_eq!(from(offset), (0, "abcdef"[offset as usize..].to_owned()));
        }
        publisher.close();
        publish(&publisher, "never");
        assert_eq!(from(4), (0, "ef".to_owned()));
        assert_eq!(from(1000), (0, String::new()));
    }

    #[test]
    fn an_offset_that_the_ring_has_no_more_is_a_loss() {
        let publisher = Publisher::new(4, 100);
        let reader = publisher.subscribe();
        for text in ["ab", "cd", "ef", "gh"] {
            publish(&publisher, text);
        }
        let mut again = reader.resubscribe_from(1);
        assert!(matches!(again.try_next(), Some(OutputEvent::Lost { bytes: 3, .. })));
        assert_eq!(again.try_next(), chunk("efgh"));
        assert_eq!((again.try_next(), again.offset()), (None, 8));
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
        assert_eq!(reader.next().await, chunk("abc"));
        assert_eq!(reader.next().await, None);
    }

    /// Promise (Server): Output that was lost at the daemon counts as lost at the client.
    #[tokio::test]
    async fn output_lost_elsewhere_is_counted() {
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

    /// Returns the number of bytes that the ring has allocated.
    fn cost(publisher: &Publisher) -> usize {
        let ring = publisher.ring.lock();
        ring.bytes.capacity() + ring.runs.capacity() * size_of::<Run>()
    }

    #[test]
    fn small_writes_cost_no_more_than_twice_the_capacity() {
        use OutputStream::{Stderr, Stdout};
        const CAPACITY: usize = 1 << 20;
        for (streams, size) in
            [([Stdout, Stdout], 1), ([Stdout, Stderr], 1), ([Stdout, Stderr], 7), ([Stderr, Stderr], 5000)]
        {
            let publisher = Publisher::new(CAPACITY, u64::MAX);
            let mut reader = publisher.subscribe();
            for at in 0..3 * CAPACITY / size {
                publisher.publish(streams[at % 2], &[b'x'; 5000][..size]);
            }
            assert!(cost(&publisher) <= 2 * CAPACITY, "{streams:?} {size}: {}", cost(&publisher));
            let (mut retained, mut lost) = (0, 0);
            while let Some(event) = reader.try_next() {
                match event {
                    OutputEvent::Chunk(chunk) => retained += chunk.data.len(),
                    OutputEvent::Lost { bytes, .. } => lost += bytes as usize,
                }
            }
            assert_eq!(retained + lost, 3 * CAPACITY / size * size);
            assert!(retained >= CAPACITY / 32 * size.min(32) - 5000, "{streams:?} {size}: {retained} kept");
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in_for_any_timing_of_reads() {
        let publisher = Publisher::new(1 << 20, u64::MAX);
        let mut readers = [publisher.subscribe(), publisher.subscribe()];
        let (mut written, mut read): (Vec<_>, [Vec<(OutputStream, u8)>; 2]) = Default::default();
        for at in 0..5000u32 {
            let stream = if at % 7 < 3 { OutputStream::Stdout } else { OutputStream::Stderr };
            publisher.publish(stream, [at as u8]);
            written.push((stream, at as u8));
            for (which, reader) in readers.iter_mut().enumerate() {
                while at % [1, 11][which] == 0
                    && let Some(OutputEvent::Chunk(chunk)) = reader.try_next()
                {
                    read[which].extend(chunk.data.iter().map(|byte| (chunk.stream, *byte)));
                }
            }
        }
        for (reader, mut read) in readers.into_iter().zip(read) {
            let mut reader = reader;
            while let Some(OutputEvent::Chunk(chunk)) = reader.try_next() {
                read.extend(chunk.data.iter().map(|byte| (chunk.stream, *byte)));
            }
            assert_eq!(read, written);
        }
    }

    proptest! {
        /// Promise (Contract): The bytes that a subscriber reads and loses add up to the output.
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
                    let stream = if size % 3 == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
                    publisher.publish(stream, vec![0; size]);
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

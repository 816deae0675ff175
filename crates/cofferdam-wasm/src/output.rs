//! A guest's output on its way to the publisher.
//!
//! Each chunk has a fixed cost for the host, so small writes are buffered. The buffer is flushed when it is full, after
//! a millisecond, when the guest blocks, and when it ends.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{ExecDriver, OutputStream};

/// The buffered bytes that are flushed at once.
const FLUSH_BYTES: usize = 4096;
/// The minimum interval between smaller chunks.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Output {
    sink: Sink,
    buffered: [(OutputStream, Vec<u8>); 2],
    last: Instant,
}

/// The target of the output.
#[derive(Debug)]
enum Sink {
    /// Published while the guest runs.
    Driver(ExecDriver),
    /// Collected until the end. `left` is the number of bytes that can still be kept.
    Collected {
        left: u64,
        seen: u64,
    },
    Gone,
}

/// Output that was collected until the end.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
    /// The bytes written, including those beyond the limit.
    pub(crate) seen: u64,
    pub(crate) truncated: bool,
}

impl Output {
    pub(crate) fn new(driver: ExecDriver) -> Self {
        Self::to(Sink::Driver(driver), Instant::now())
    }

    /// Creates an output that collects up to `max` bytes of both streams together.
    pub(crate) fn collected(max: u64, now: Instant) -> Self {
        Self::to(Sink::Collected { left: max, seen: 0 }, now)
    }

    /// Creates an output that discards everything, for the time between two runs.
    pub(crate) fn discarded() -> Self {
        Self::to(Sink::Gone, Instant::now())
    }

    fn to(sink: Sink, now: Instant) -> Self {
        let buffered = [(OutputStream::Stdout, Vec::new()), (OutputStream::Stderr, Vec::new())];
        Self { sink, buffered, last: now }
    }

    pub(crate) fn write(&mut self, stream: OutputStream, mut data: &[u8]) {
        let Some((_, buffer)) = self.buffered.iter_mut().find(|(known, _)| *known == stream) else { return };
        match &mut self.sink {
            Sink::Driver(driver) => {
                buffer.extend_from_slice(data);
                if buffer.len() >= FLUSH_BYTES {
                    driver.publisher().publish(stream, Bytes::from(std::mem::take(buffer)));
                }
            }
            Sink::Collected { left, seen } => {
                *seen += data.len() as u64;
                data = &data[..usize::try_from(*left).map_or(data.len(), |left| left.min(data.len()))];
                *left -= data.len() as u64;
                buffer.extend_from_slice(data);
            }
            Sink::Gone => {}
        }
    }

    /// Returns the time of the next flush; `None` if nothing is buffered.
    pub(crate) fn flush_time(&self) -> Option<Instant> {
        let pending = matches!(self.sink, Sink::Driver(_)) && self.buffered.iter().any(|(_, bytes)| !bytes.is_empty());
        pending.then(|| self.last + FLUSH_INTERVAL)
    }

    pub(crate) fn flush(&mut self) {
        let Sink::Driver(driver) = &self.sink else { return };
        for (stream, buffer) in &mut self.buffered {
            if !buffer.is_empty() {
                driver.publisher().publish(*stream, Bytes::from(std::mem::take(buffer)));
            }
        }
        self.last = Instant::now();
    }

    /// Flushes the rest and returns the driver, once.
    pub(crate) fn finish(&mut self) -> Option<ExecDriver> {
        self.flush();
        match std::mem::replace(&mut self.sink, Sink::Gone) {
            Sink::Driver(driver) => Some(driver),
            _ => None,
        }
    }

    /// Returns the collected output, once.
    pub(crate) fn collect(&mut self) -> Collected {
        let Sink::Collected { seen, .. } = std::mem::replace(&mut self.sink, Sink::Gone) else {
            return Collected::default();
        };
        let [stdout, stderr] = self.buffered.each_mut().map(|(_, bytes)| Bytes::from(std::mem::take(bytes)));
        let truncated = seen > (stdout.len() + stderr.len()) as u64;
        Collected { stdout, stderr, seen, truncated }
    }
}

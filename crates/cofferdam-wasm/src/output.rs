//! A guest's output on its way to the publisher.
//!
//! Each chunk costs the host more than its bytes, so that a guest that writes byte by byte is gathered: what it writes
//! goes on when there is much of it, when a millisecond has passed, when the guest waits, and when it ends.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{ExecDriver, OutputStream};

/// Bytes that go on at once.
const MUCH: usize = 4096;
/// The least time between chunks that are not much.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Output {
    sink: Sink,
    gathered: [(OutputStream, Vec<u8>); 2],
    last: Instant,
}

/// Where output goes.
#[derive(Debug)]
enum Sink {
    /// On, as it comes.
    Driver(ExecDriver),
    /// Nowhere until the end. `left` more bytes are kept.
    Kept {
        left: u64,
        seen: u64,
    },
    Gone,
}

/// Output that was kept until the end.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
    /// Bytes written, those beyond the limit included.
    pub(crate) seen: u64,
    pub(crate) truncated: bool,
}

impl Output {
    pub(crate) fn new(driver: ExecDriver) -> Self {
        Self::to(Sink::Driver(driver), Instant::now())
    }

    /// Keeps up to `most` bytes of both streams together.
    pub(crate) fn kept(most: u64, now: Instant) -> Self {
        Self::to(Sink::Kept { left: most, seen: 0 }, now)
    }

    /// For what is between two runs.
    pub(crate) fn nowhere() -> Self {
        Self::to(Sink::Gone, Instant::now())
    }

    fn to(sink: Sink, now: Instant) -> Self {
        let gathered = [(OutputStream::Stdout, Vec::new()), (OutputStream::Stderr, Vec::new())];
        Self { sink, gathered, last: now }
    }

    pub(crate) fn write(&mut self, stream: OutputStream, mut data: &[u8]) {
        let Some((_, gathered)) = self.gathered.iter_mut().find(|(known, _)| *known == stream) else { return };
        match &mut self.sink {
            Sink::Driver(driver) => {
                gathered.extend_from_slice(data);
                if gathered.len() >= MUCH {
                    driver.publisher().publish(stream, Bytes::from(std::mem::take(gathered)));
                }
            }
            Sink::Kept { left, seen } => {
                *seen += data.len() as u64;
                data = &data[..usize::try_from(*left).map_or(data.len(), |left| left.min(data.len()))];
                *left -= data.len() as u64;
                gathered.extend_from_slice(data);
            }
            Sink::Gone => {}
        }
    }

    /// When what is gathered may go on; `None` where there is nothing.
    pub(crate) fn due(&self) -> Option<Instant> {
        let waits = matches!(self.sink, Sink::Driver(_)) && self.gathered.iter().any(|(_, bytes)| !bytes.is_empty());
        waits.then(|| self.last + PAUSE)
    }

    pub(crate) fn flush(&mut self) {
        let Sink::Driver(driver) = &self.sink else { return };
        for (stream, gathered) in &mut self.gathered {
            if !gathered.is_empty() {
                driver.publisher().publish(*stream, Bytes::from(std::mem::take(gathered)));
            }
        }
        self.last = Instant::now();
    }

    /// Passes the rest on and gives the driver away, once.
    pub(crate) fn finish(&mut self) -> Option<ExecDriver> {
        self.flush();
        match std::mem::replace(&mut self.sink, Sink::Gone) {
            Sink::Driver(driver) => Some(driver),
            _ => None,
        }
    }

    /// Gives away what was kept, once.
    pub(crate) fn collect(&mut self) -> Collected {
        let Sink::Kept { seen, .. } = std::mem::replace(&mut self.sink, Sink::Gone) else {
            return Collected::default();
        };
        let [stdout, stderr] = self.gathered.each_mut().map(|(_, bytes)| Bytes::from(std::mem::take(bytes)));
        let truncated = seen > (stdout.len() + stderr.len()) as u64;
        Collected { stdout, stderr, seen, truncated }
    }
}

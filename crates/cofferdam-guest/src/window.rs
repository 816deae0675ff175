//! Flow control of input and file contents, in both directions.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use cofferdam_contract::Error;
use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio::sync::OwnedSemaphorePermit;

use crate::wire::{MAX_DATA, WINDOW};

/// The highest number of bytes of a file in transit to the host.
pub const READ_WINDOW: usize = 256 * 1024;

/// The number of bytes that may still be sent for one id.
#[derive(Debug)]
pub struct Window {
    state: Mutex<WindowState>,
    _permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct WindowState {
    credit: usize,
    /// Taken bytes that were not written to the agent yet.
    unsent: usize,
    /// True if the agent accepts no more bytes.
    closed: bool,
    waker: Option<Waker>,
}

impl Window {
    /// Creates a window with full credit.
    pub fn new() -> Arc<Self> {
        Self::with(None)
    }

    /// Creates a window that keeps a permit until the last frame with one of its [`Taken`] was written.
    pub fn with(permit: Option<OwnedSemaphorePermit>) -> Arc<Self> {
        let state = WindowState { credit: WINDOW, unsent: 0, closed: false, waker: None };
        Arc::new(Self { state: Mutex::new(state), _permit: permit })
    }

    /// Adds credit for consumed bytes. Returns false if fewer bytes were written to the agent.
    pub fn grant(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        if bytes > WINDOW - state.credit - state.unsent {
            return false;
        }
        state.credit += bytes;
        state.waker.take().into_iter().for_each(Waker::wake);
        true
    }

    /// Closes the window, because the agent accepts no more bytes.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes all available credit, at most `max`. Returns `None` if the window is closed.
    pub fn poll_take(self: &Arc<Self>, context: &Context<'_>, max: usize) -> Poll<Option<Taken>> {
        let mut state = self.state.lock();
        if state.closed {
            return Poll::Ready(None);
        }
        let count = max.min(state.credit).min(MAX_DATA);
        if count == 0 && max > 0 {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.credit -= count;
        state.unsent += count;
        Poll::Ready(Some(Taken { window: Arc::clone(self), bytes: count }))
    }

    /// Waits for credit, like [`Self::poll_take`].
    pub async fn take(self: &Arc<Self>, max: usize) -> Option<Taken> {
        std::future::poll_fn(|context| self.poll_take(context, max)).await
    }

    /// Takes no credit, for a frame without contents.
    pub fn take_nothing(self: &Arc<Self>) -> Taken {
        Taken { window: Arc::clone(self), bytes: 0 }
    }
}

/// Credit that was taken from a window. The frame that uses it owns it, and drops it once it was written to the agent.
#[derive(Debug)]
pub struct Taken {
    window: Arc<Window>,
    bytes: usize,
}

impl Taken {
    /// Returns the number of bytes that may be sent.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns all but this much credit to the window.
    pub fn shrink(&mut self, bytes: usize) {
        let unused = self.bytes.saturating_sub(bytes);
        let mut state = self.window.state.lock();
        state.credit += unused;
        state.unsent -= unused;
        self.bytes -= unused;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.window.state.lock().unsent -= self.bytes;
    }
}

/// A buffer of a file's received bytes.
#[derive(Debug)]
pub struct Inflow(Mutex<InflowState>);

#[derive(Debug)]
struct InflowState {
    buffer: BytesMut,
    /// Requested bytes that have not arrived yet.
    granted: usize,
    end: Option<Result<(), Error>>,
    waker: Option<Waker>,
}

impl Inflow {
    /// Creates a buffer for a file of which one window of bytes was requested.
    pub fn new() -> Arc<Self> {
        let state = InflowState { buffer: BytesMut::new(), granted: READ_WINDOW, end: None, waker: None };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Adds received bytes. Returns false if they were not requested.
    pub fn put(&self, data: &[u8]) -> bool {
        let mut state = self.0.lock();
        if data.is_empty() || data.len() > state.granted {
            return false;
        }
        state.granted -= data.len();
        state.buffer.extend_from_slice(data);
        state.waker.take().into_iter().for_each(Waker::wake);
        true
    }

    /// Ends the buffer with the result of reading.
    pub fn end(&self, result: Result<(), Error>) {
        let mut state = self.0.lock();
        state.end.get_or_insert(result);
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes received bytes. Returns their number, which is zero only at the end of the file. `into` must have space.
    pub fn poll_take(&self, context: &Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.buffer.is_empty() {
            return match &state.end {
                Some(Ok(())) => Poll::Ready(Ok(0)),
                Some(Err(error)) => Poll::Ready(Err(io::Error::other(error.clone()))),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        }
        let count = into.remaining().min(state.buffer.len());
        into.put_slice(&state.buffer[..count]);
        state.buffer.advance(count);
        Poll::Ready(Ok(count))
    }

    /// Accepts this many more bytes, for which the caller asks next. Returns false if the file has ended.
    pub fn expect(&self, bytes: usize) -> bool {
        let mut state = self.0.lock();
        if state.end.is_some() {
            return false;
        }
        state.granted += bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    fn take(window: &Arc<Window>, max: usize) -> Option<Taken> {
        match window.poll_take(&Context::from_waker(Waker::noop()), max) {
            Poll::Ready(taken) => taken,
            Poll::Pending => None,
        }
    }

    #[test]
    fn credit_is_only_for_written_bytes() {
        let window = Window::new();
        assert!(!window.grant(1));
        let (first, mut second) = (take(&window, 1000).unwrap(), take(&window, 500).unwrap());
        assert!(!window.grant(1), "nothing was written");
        second.shrink(100);
        assert!(!window.grant(1), "returned credit is no written byte");
        drop(first);
        assert!(!window.grant(1001));
        assert!(window.grant(1000));
        drop(second);
        assert!(!window.grant(101));
        assert!(window.grant(100));
        let all: Vec<Taken> = std::iter::from_fn(|| take(&window, WINDOW)).collect();
        assert_eq!(all.iter().map(Taken::bytes).sum::<usize>(), WINDOW);
    }

    #[tokio::test]
    async fn permit_is_kept_until_all_frames_are_written() {
        let permits = Arc::new(Semaphore::new(1));
        let window = Window::with(Some(Arc::clone(&permits).acquire_owned().await.unwrap()));
        let (data, end) = (take(&window, 9).unwrap(), window.take_nothing());
        window.close();
        drop((window, data));
        assert_eq!(permits.available_permits(), 0);
        drop(end);
        assert_eq!(permits.available_permits(), 1);
    }
}

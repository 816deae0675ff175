//! Flow control of input and file contents, in both directions.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use cofferdam_contract::Error;
use parking_lot::Mutex;
use tokio::io::ReadBuf;

use crate::wire::{MAX_DATA, WINDOW};

/// The highest number of bytes of a file in transit to the host.
pub const READ_WINDOW: usize = 256 * 1024;

/// The number of bytes that may still be sent for one id.
#[derive(Debug)]
pub struct Window(Mutex<WindowState>);

#[derive(Debug)]
struct WindowState {
    credit: usize,
    /// True if the agent accepts no more bytes.
    closed: bool,
    waker: Option<Waker>,
}

impl Window {
    /// Creates a window with full credit.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(WindowState { credit: WINDOW, closed: false, waker: None })))
    }

    /// Adds credit for consumed bytes. Returns false if fewer bytes were sent.
    pub fn grant(&self, bytes: usize) -> bool {
        let mut state = self.0.lock();
        if bytes > WINDOW - state.credit {
            return false;
        }
        state.credit += bytes;
        state.waker.take().into_iter().for_each(Waker::wake);
        true
    }

    /// Closes the window, because the agent accepts no more bytes.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes all available credit, at most `max`. Returns `None` if the window is closed.
    pub fn poll_take(&self, context: &Context<'_>, max: usize) -> Poll<Option<usize>> {
        let mut state = self.0.lock();
        if state.closed {
            return Poll::Ready(None);
        }
        let count = max.min(state.credit).min(MAX_DATA);
        if count == 0 && max > 0 {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.credit -= count;
        Poll::Ready(Some(count))
    }

    /// Waits for credit, like [`Self::poll_take`].
    pub async fn take(&self, max: usize) -> Option<usize> {
        std::future::poll_fn(|context| self.poll_take(context, max)).await
    }

    /// Returns unused credit to the window.
    pub fn put_back(&self, bytes: usize) {
        self.0.lock().credit += bytes;
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

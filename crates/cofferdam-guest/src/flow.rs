//! Flow control of input and file contents, in both directions.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use cofferdam_contract::Error;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::Link;
use crate::wire::{MAX_DATA, Request, WINDOW};

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

    /// True if the agent accepts no more bytes.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Takes all available credit, at most `most`. Returns `None` if the window is closed.
    pub fn poll_take(&self, context: &Context<'_>, most: usize) -> Poll<Option<usize>> {
        let mut state = self.0.lock();
        if state.closed {
            return Poll::Ready(None);
        }
        let count = most.min(state.credit).min(MAX_DATA);
        if count == 0 && most > 0 {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.credit -= count;
        Poll::Ready(Some(count))
    }

    /// Waits for credit, like [`Self::poll_take`].
    pub async fn take(&self, most: usize) -> Option<usize> {
        std::future::poll_fn(|context| self.poll_take(context, most)).await
    }

    /// Returns unused credit to the window.
    pub fn put_back(&self, bytes: usize) {
        self.0.lock().credit += bytes;
    }
}

/// An exec's standard input.
pub struct Input {
    link: Weak<Link>,
    id: u64,
    window: Arc<Window>,
    ended: bool,
}

impl Input {
    /// Creates the input of an exec.
    pub fn new(link: &Arc<Link>, id: u64, window: Arc<Window>) -> Self {
        Self { link: Arc::downgrade(link), id, window, ended: false }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true)
            && let Some(link) = self.link.upgrade()
        {
            link.send(self.id, &Request::InputEnd);
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.end();
    }
}

impl AsyncWrite for Input {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.ended || data.is_empty() {
            let result = if self.ended { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(0) };
            return Poll::Ready(result);
        }
        let Poll::Ready(taken) = self.window.poll_take(context, data.len()) else { return Poll::Pending };
        let sent = taken.zip(self.link.upgrade()).filter(|(count, link)| {
            link.send(self.id, &Request::Input { data: &data[..*count] });
            link.is_open()
        });
        Poll::Ready(sent.map(|(count, _)| count).ok_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
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
}

/// A reader of a file in a guest. Dropping it closes the file.
pub struct Reader {
    link: Weak<Link>,
    id: u64,
    flow: Arc<Inflow>,
    /// Bytes read since the last request for more.
    taken: usize,
}

impl Reader {
    /// Creates the reader of the file with this id.
    pub fn new(link: &Arc<Link>, id: u64, flow: Arc<Inflow>) -> Self {
        Self { link: Arc::downgrade(link), id, flow, taken: 0 }
    }
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let flow = Arc::clone(&self.flow);
        let mut state = flow.0.lock();
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if state.buffer.is_empty() {
            return match &state.end {
                Some(Ok(())) => Poll::Ready(Ok(())),
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
        self.taken += count;
        if self.taken >= READ_WINDOW / 2 && state.end.is_none() {
            state.granted += self.taken;
            if let Some(link) = self.link.upgrade() {
                link.send(self.id, &Request::More { bytes: self.taken as u32 });
            }
            self.taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.forget(self.id);
        }
    }
}

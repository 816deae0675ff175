//! Control of a running guest from other threads: termination requests, and input.
//!
//! A guest that blocks in a call waits here, so that a termination request or the deadline wakes it at once.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Error, ExecControl, Result, TerminalSize};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::io::AsyncWrite;

use crate::network::Waker;
use crate::termination::{SIGKILL, SIGTERM, Termination};

/// The input buffered for a guest that does not read it.
const MAX_BUFFERED: usize = 64 << 10;

#[derive(Debug, Default)]
struct State {
    request: Option<Termination>,
    streamed: VecDeque<u8>,
    /// True if the writer is closed.
    ended: bool,
    /// True if the guest stopped reading.
    gone: bool,
    writer: Option<task::Waker>,
    /// Wakes the guest's thread if it also waits for sockets.
    waker: Option<Arc<Waker>>,
}

/// The control that connects an exec's handle to its guest.
#[derive(Debug, Default)]
pub(crate) struct GuestControl {
    state: Mutex<State>,
    changed: Condvar,
}

impl GuestControl {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Requests the guest's termination. The first request counts.
    pub(crate) fn request(&self, termination: Termination) {
        self.lock().request.get_or_insert(termination);
        self.notify();
    }

    pub(crate) fn requested(&self) -> Option<Termination> {
        self.lock().request
    }

    /// Sets a waker that is also notified of termination requests and input.
    pub(crate) fn set_waker(&self, waker: &Arc<Waker>) {
        self.lock().waker = Some(Arc::clone(waker));
    }

    fn notify(&self) {
        self.changed.notify_all();
        if let Some(waker) = &self.lock().waker {
            waker.wake();
        }
    }

    /// Waits until termination is requested, input is available if `input` is set, or `until` has passed.
    pub(crate) fn wait(&self, until: Instant, input: bool) {
        let mut state = self.lock();
        while state.request.is_none() && !(input && state.readable()) {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Returns true if a read would return at once, with bytes or the end of input.
    pub(crate) fn readable(&self) -> bool {
        self.lock().readable()
    }

    /// Reads the available input. Returns 0 at the end of input, and `None` if no input is available yet.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut state = self.lock();
        if state.streamed.is_empty() {
            return state.ended.then_some(0);
        }
        let size = buffer.len().min(state.streamed.len());
        for (target, byte) in buffer.iter_mut().zip(state.streamed.drain(..size)) {
            *target = byte;
        }
        state.wake_writer();
        Some(size)
    }

    /// Discards the input when the guest stops reading, and removes the waker.
    pub(crate) fn stop_reading(&self) {
        let mut state = self.lock();
        state.gone = true;
        state.streamed = VecDeque::new();
        state.waker = None;
        state.wake_writer();
    }

    fn end_input(&self) {
        self.lock().ended = true;
        self.notify();
    }
}

impl State {
    fn readable(&self) -> bool {
        self.ended || !self.streamed.is_empty()
    }

    fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

/// The implementation of an exec's handle. A module cannot handle signals, so SIGTERM ends it at once.
pub(crate) struct ExecHandleControl(pub(crate) Arc<GuestControl>);

impl ExecControl for ExecHandleControl {
    fn cancel(&self, _grace: Duration) {
        self.0.request(Termination::Cancelled { signal: SIGTERM });
    }

    fn kill(&self) {
        self.0.request(Termination::Cancelled { signal: SIGKILL });
    }

    fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", "WebAssembly guests do not support terminals"))
    }
}

/// The writer of a guest's input.
pub(crate) struct InputWriter(pub(crate) Arc<GuestControl>);

impl AsyncWrite for InputWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.gone || state.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let size = data.len().min(MAX_BUFFERED.saturating_sub(state.streamed.len()));
        if size == 0 && !data.is_empty() {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.streamed.extend(&data[..size]);
        drop(state);
        self.0.notify();
        Poll::Ready(Ok(size))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.end_input();
        Poll::Ready(Ok(()))
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        self.0.end_input();
    }
}

/// The source of a guest's input.
#[derive(Debug)]
pub(crate) enum Input {
    /// Bytes that are known at the start.
    Given(Bytes),
    /// Bytes that are written during the run.
    Streamed,
}

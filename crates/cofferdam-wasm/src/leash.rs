//! What reaches a running guest from outside: orders to end, and input.
//!
//! A guest that waits in a call waits here, so that an order or the end of its time wakes it at once.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{self, Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Error, ExecControl, Result, TerminalSize};
use tokio::io::AsyncWrite;

use crate::ending::{Ending, SIGKILL, SIGTERM};
use crate::network::Waker;

/// Input that is held for a guest that does not read it.
const PIPE: usize = 64 << 10;

#[derive(Debug, Default)]
struct State {
    order: Option<Ending>,
    streamed: VecDeque<u8>,
    /// Nobody writes any more.
    ended: bool,
    /// Nobody reads any more.
    gone: bool,
    writer: Option<task::Waker>,
    /// Wakes the guest's thread where it waits for more than this.
    elsewhere: Option<Arc<Waker>>,
}

/// The line between an exec's owner and its guest.
#[derive(Debug, Default)]
pub(crate) struct Leash {
    state: Mutex<State>,
    changed: Condvar,
}

impl Leash {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the guest to end. The first order holds.
    pub(crate) fn order(&self, ending: Ending) {
        self.lock().order.get_or_insert(ending);
        self.notify();
    }

    pub(crate) fn ordered(&self) -> Option<Ending> {
        self.lock().order
    }

    /// From now on this, too, is told of orders and input.
    pub(crate) fn wake_elsewhere(&self, waker: &Arc<Waker>) {
        self.lock().elsewhere = Some(Arc::clone(waker));
    }

    fn notify(&self) {
        self.changed.notify_all();
        if let Some(waker) = &self.lock().elsewhere {
            waker.wake();
        }
    }

    /// Waits until there is an order, input if that is wanted, or `until` has come.
    pub(crate) fn wait(&self, until: Instant, input: bool) {
        let mut state = self.lock();
        while state.order.is_none() && !(input && state.readable()) {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a read would get bytes or the end at once.
    pub(crate) fn readable(&self) -> bool {
        self.lock().readable()
    }

    /// Takes input that is there; 0 is the end, `None` that there is none yet.
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

    /// The guest reads no more, and waits for nothing.
    pub(crate) fn stop_reading(&self) {
        let mut state = self.lock();
        state.gone = true;
        state.streamed = VecDeque::new();
        state.elsewhere = None;
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

/// What an exec's handle can do to its guest. A module cannot handle a signal, so that SIGTERM ends it at once.
pub(crate) struct Control(pub(crate) Arc<Leash>);

impl ExecControl for Control {
    fn cancel(&self, _grace: Duration) {
        self.0.order(Ending::Cancelled { signal: SIGTERM });
    }

    fn kill(&self) {
        self.0.order(Ending::Cancelled { signal: SIGKILL });
    }

    fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", "a module has no terminal"))
    }
}

/// The writing end of a guest's input.
pub(crate) struct InputWriter(pub(crate) Arc<Leash>);

impl AsyncWrite for InputWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.gone || state.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let size = data.len().min(PIPE.saturating_sub(state.streamed.len()));
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

/// Where a guest's input comes from.
#[derive(Debug)]
pub(crate) enum Input {
    /// Bytes that were there from the start.
    Given(Bytes),
    /// What is written while it runs.
    Streamed,
}

//! A running exec: the handle for the caller and the driver for the backend.
//!
//! ```text
//! running --(program ends | time-out | limit | cancel | close | drop)--> ended, exit cached
//! ```

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::{Error, ExecRequest, Exit, OutputSubscription, Publisher, Result, TerminalSize};

/// The default grace period between SIGTERM and SIGKILL in [`ExecHandle::cancel`]: 2 seconds.
pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(2);

/// The id of an exec within its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ExecId(pub u64);

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The control operations of a handle on a running exec, implemented by the backend. Every call returns immediately and
/// may be repeated.
pub trait ExecControl: Send + Sync {
    /// Sends SIGTERM to the process tree, and SIGKILL after `grace`. The exit has `cancelled` set.
    fn cancel(&self, grace: Duration);

    /// Kills the process tree. The exit has `cancelled` set.
    fn kill(&self);

    /// Resizes the exec's terminal. Fails with `Unsupported` if the exec has none.
    fn resize(&self, size: TerminalSize) -> Result<()>;
}

/// A writer to a program's standard input. Dropping it or shutting it down sends end-of-file.
pub struct StdinWriter(Box<dyn AsyncWrite + Send + Unpin>);

impl StdinWriter {
    /// Wraps the backend's writer. Its shutdown and drop must send end-of-file.
    pub fn new(writer: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Box::new(writer))
    }

    /// Sends end-of-file.
    pub async fn close(mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

impl AsyncWrite for StdinWriter {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl fmt::Debug for StdinWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StdinWriter")
    }
}

type Outcome = Option<Result<Exit>>;

/// A handle on a running exec. Dropping it kills the process tree and frees its resources.
pub struct ExecHandle {
    id: ExecId,
    first: Mutex<Option<OutputSubscription>>,
    live: OutputSubscription,
    exit: watch::Receiver<Outcome>,
    stdin: Mutex<Option<StdinWriter>>,
    control: Arc<dyn ExecControl>,
}

impl ExecHandle {
    /// Creates a handle and the driver through which the backend feeds it. The driver's publisher has the output limit
    /// and buffer size of `request`.
    pub fn new(
        id: ExecId,
        request: &ExecRequest,
        stdin: Option<StdinWriter>,
        control: Arc<dyn ExecControl>,
    ) -> (Self, ExecDriver) {
        let buffer = usize::try_from(request.output_buffer().as_bytes()).unwrap_or(usize::MAX);
        let publisher = Publisher::new(buffer, request.max_output().as_bytes());
        let (sender, exit) = watch::channel(None);
        let handle = Self {
            id,
            first: Mutex::new(Some(publisher.subscribe())),
            live: publisher.subscribe(),
            exit,
            stdin: Mutex::new(stdin),
            control,
        };
        (handle, ExecDriver { publisher, exit: sender })
    }

    /// Runs `then` after the exec has ended, and before any waiter of this handle learns its exit. For layers that
    /// record or settle something first. Needs a tokio runtime.
    #[must_use]
    pub fn before_exit<F>(mut self, then: impl FnOnce(Result<Exit>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<Exit>> + Send,
    {
        let ended = self.exit_watch();
        let (sender, exit) = watch::channel(None);
        self.exit = exit;
        tokio::spawn(async move {
            let outcome = then(ended.exit().await).await;
            sender.send_replace(Some(outcome));
        });
        self
    }

    /// Returns the exec's id within its sandbox.
    pub fn id(&self) -> ExecId {
        self.id
    }

    /// Subscribes to the output.
    ///
    /// # Behavior
    /// - The first call receives the output from the start. Each later call receives only output from then on.
    /// - A subscriber that is too slow receives [`crate::OutputEvent::Lost`] and continues from the oldest buffered
    ///   chunk.
    /// - The stream ends when the exec has ended.
    pub fn output(&self) -> OutputSubscription {
        let first = self.first.lock().take();
        first.unwrap_or_else(|| self.live.resubscribe())
    }

    /// Subscribes to the output from a byte offset, for a reader that has read that much before. Offsets count the bytes
    /// of both streams together.
    ///
    /// # Behavior
    /// - Output before the offset that the buffer still has is not repeated. Output after it that the buffer has no
    ///   more is reported as [`crate::OutputEvent::Lost`].
    /// - An offset beyond the end is the end.
    /// - Works as long as the handle lives, also after the exec has ended.
    pub fn output_from(&self, offset: u64) -> OutputSubscription {
        self.live.resubscribe_from(offset)
    }

    /// Takes the writer to standard input. Returns `None` if the request has no stream or the writer was already taken.
    pub fn stdin(&self) -> Option<StdinWriter> {
        self.stdin.lock().take()
    }

    /// Waits for the exit. Any number of callers may wait, before and after the end; all get the same result.
    pub async fn exit(&self) -> Result<Exit> {
        self.exit_watch().exit().await
    }

    /// Returns a watch on the exit. A watch does not keep the exec alive when the handle is dropped.
    pub fn exit_watch(&self) -> ExitWatch {
        ExitWatch(self.exit.clone())
    }

    /// Returns the exit if the exec has ended.
    pub fn try_exit(&self) -> Option<Result<Exit>> {
        self.exit.borrow().clone()
    }

    /// Terminates the process tree and waits for the exit: SIGTERM, then SIGKILL after [`DEFAULT_CANCEL_GRACE`].
    /// Idempotent.
    pub async fn cancel(&self) -> Result<Exit> {
        self.cancel_within(DEFAULT_CANCEL_GRACE).await
    }

    /// Terminates the process tree like [`Self::cancel`], with `grace` between SIGTERM and SIGKILL.
    pub async fn cancel_within(&self, grace: Duration) -> Result<Exit> {
        if self.try_exit().is_none() {
            self.control.cancel(grace);
        }
        self.exit().await
    }

    /// Terminates the process tree like [`Self::cancel_within`] without waiting for the exit.
    pub fn request_cancel(&self, grace: Duration) {
        self.control.cancel(grace);
    }

    /// Kills the process tree if it is still running, and waits for the exit. Idempotent.
    pub async fn close(&self) -> Result<()> {
        if self.try_exit().is_none() {
            self.control.kill();
        }
        drop(self.stdin());
        self.exit().await.map(drop)
    }

    /// Resizes the exec's terminal. Fails with `Unsupported` if the exec has none.
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size)
    }
}

impl Drop for ExecHandle {
    fn drop(&mut self) {
        if self.try_exit().is_none() {
            self.control.kill();
        }
    }
}

impl fmt::Debug for ExecHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecHandle").field("id", &self.id).field("exit", &self.try_exit()).finish_non_exhaustive()
    }
}

/// A watch on an exec's exit that does not own the handle.
#[derive(Debug, Clone)]
pub struct ExitWatch(watch::Receiver<Outcome>);

impl ExitWatch {
    /// Waits for the exit like [`ExecHandle::exit`].
    pub async fn exit(&self) -> Result<Exit> {
        let mut exit = self.0.clone();
        let outcome = match exit.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        outcome.unwrap_or_else(|| {
            Err(Error::new(crate::ErrorKind::Internal, "exit", "the backend ended without reporting an exit"))
        })
    }

    /// Returns true if the exec has ended, or if its backend has gone without reporting an exit.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }
}

/// The backend's end of an [`ExecHandle`]. If it is dropped before [`Self::finish`], every waiter gets an internal
/// error.
#[derive(Debug)]
pub struct ExecDriver {
    publisher: Publisher,
    exit: watch::Sender<Outcome>,
}

impl ExecDriver {
    /// Returns the publisher for the exec's output.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Ends the output and reports the outcome to every waiter. Sets `truncated` and `output_bytes` from the publisher.
    pub fn finish(self, outcome: Result<Exit>) {
        self.publisher.close();
        let outcome = outcome.map(|mut exit| {
            exit.truncated = self.publisher.truncated();
            exit.usage.output_bytes = self.publisher.bytes_seen();
            exit
        });
        self.exit.send_replace(Some(outcome));
    }
}

//! A running exec, as its starter holds it, and the other end that a backend drives.
//!
//! ```text
//! running --(program ends | time-out | limit | cancel | close | drop)--> ended, exit cached
//! ```

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::{Error, ExecRequest, Exit, OutputSubscription, Publisher, Result, TerminalSize};

/// Time between SIGTERM and SIGKILL in [`ExecHandle::cancel`].
pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(2);

/// Names one exec within its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ExecId(pub u64);

impl fmt::Display for ExecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a backend lets a handle do to a running exec. Every call returns at once and may be repeated.
pub trait ExecControl: Send + Sync {
    /// Asks the process tree to end: SIGTERM, after `grace` SIGKILL. The exit says `cancelled`.
    fn cancel(&self, grace: Duration);

    /// Kills the process tree. The exit says `cancelled`.
    fn kill(&self);

    /// Changes the size of the exec's terminal; `Unsupported` without one.
    fn resize(&self, size: TerminalSize) -> Result<()>;
}

/// The bytes that go to a program's standard input. Dropping or shutting it down is end-of-file.
pub struct StdinWriter(Box<dyn AsyncWrite + Send + Unpin>);

impl StdinWriter {
    /// Wraps the backend's writer, whose shutdown and drop must mean end-of-file.
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

/// A running exec. Dropping it kills the process tree and frees what it held.
pub struct ExecHandle {
    id: ExecId,
    first: Mutex<Option<OutputSubscription>>,
    live: OutputSubscription,
    exit: watch::Receiver<Outcome>,
    stdin: Mutex<Option<StdinWriter>>,
    control: Arc<dyn ExecControl>,
}

impl ExecHandle {
    /// Makes a handle and the driver through which the backend feeds it. The driver's publisher has the bounds that
    /// `request` asks for.
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

    /// The exec's id within its sandbox.
    pub fn id(&self) -> ExecId {
        self.id
    }

    /// Subscribes to output.
    ///
    /// # Behavior
    /// - The first call gets the output from the start; every later call gets what comes from then on.
    /// - A subscriber that is too slow gets [`crate::OutputEvent::Lost`] and goes on from the oldest chunk kept.
    /// - The stream ends when the exec has ended.
    pub fn output(&self) -> OutputSubscription {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| self.live.resubscribe())
    }

    /// Takes the writer to standard input; `None` if the request had none or it was taken.
    pub fn stdin(&self) -> Option<StdinWriter> {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for the end. Any number of callers may wait, before and after it; all get the same answer.
    pub async fn exit(&self) -> Result<Exit> {
        self.exit_watch().exit().await
    }

    /// The end alone: whoever watches it does not keep the exec from being dropped.
    pub fn exit_watch(&self) -> ExitWatch {
        ExitWatch(self.exit.clone())
    }

    /// The exit if it is known already.
    pub fn try_exit(&self) -> Option<Result<Exit>> {
        self.exit.borrow().clone()
    }

    /// Ends the process tree: SIGTERM, [`DEFAULT_CANCEL_GRACE`], SIGKILL; waits for the end. Idempotent.
    pub async fn cancel(&self) -> Result<Exit> {
        self.cancel_within(DEFAULT_CANCEL_GRACE).await
    }

    /// As [`Self::cancel`], with another grace period.
    pub async fn cancel_within(&self, grace: Duration) -> Result<Exit> {
        if self.try_exit().is_none() {
            self.control.cancel(grace);
        }
        self.exit().await
    }

    /// Asks for the end without waiting for it: SIGTERM, `grace`, SIGKILL.
    pub fn request_cancel(&self, grace: Duration) {
        self.control.cancel(grace);
    }

    /// Kills the process tree if it runs still, and waits for the end. Idempotent.
    pub async fn close(&self) -> Result<()> {
        if self.try_exit().is_none() {
            self.control.kill();
        }
        drop(self.stdin());
        self.exit().await.map(drop)
    }

    /// Changes the size of the exec's terminal.
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

/// Watches an exec's end without holding on to its handle.
#[derive(Debug, Clone)]
pub struct ExitWatch(watch::Receiver<Outcome>);

impl ExitWatch {
    /// As [`ExecHandle::exit`].
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

    /// Whether the exec has ended, or its backend has.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }
}

/// The backend's end of an [`ExecHandle`]. Dropping it unfinished gives every waiter an internal error.
#[derive(Debug)]
pub struct ExecDriver {
    publisher: Publisher,
    exit: watch::Sender<Outcome>,
}

impl ExecDriver {
    /// Where output goes.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Ends the output, then tells every waiter. `truncated` and `output_bytes` are filled in from the publisher.
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

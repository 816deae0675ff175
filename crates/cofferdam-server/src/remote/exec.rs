//! An exec of a server's sandbox: its output and exit from a WebSocket, its input and signals to the server.
//!
//! If the connection is cut, another one continues at the offset of the output, so that nothing is lost or repeated.
//! Input that was on the way may be lost then, and so the program's input ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use cofferdam_contract::{
    Error, ErrorKind, ExecControl, ExecDriver, ExecHandle, ExecId, ExecRequest, Exit, Result, SandboxId, Stdin,
    StdinWriter, TerminalSize,
};
use hyper::Method;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::client::{Client, Event, Input, Receiving, Sending, encoded};
use crate::rest::Control;
use crate::rest::views::{Signal, SignalExec};

/// Bytes of input that are sent at once.
const PIECE: usize = 32 << 10;
/// Time to reach a server again after a cut.
const RECONNECT_TIME: Duration = Duration::from_secs(60);
/// The first and the longest pause between two attempts.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The number of the next exec of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Requests of a handle. A later one of a kind replaces an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Requests {
    cancel: Option<Duration>,
    kill: bool,
    size: Option<TerminalSize>,
}

struct Controls {
    requests: watch::Sender<Requests>,
    has_terminal: bool,
}

impl ExecControl for Controls {
    fn cancel(&self, grace: Duration) {
        self.requests.send_modify(|requests| requests.cancel = Some(grace));
    }

    fn kill(&self) {
        self.requests.send_modify(|requests| requests.kill = true);
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.has_terminal {
            return Err(Error::unsupported("resize", "the exec has no terminal"));
        }
        self.requests.send_modify(|requests| requests.size = Some(size));
        Ok(())
    }
}

/// Follows an exec that was started.
pub(super) fn follow(client: Client, sandbox: SandboxId, id: &str, request: &ExecRequest) -> ExecHandle {
    let (requests, requested) = watch::channel(Requests::default());
    let control = Arc::new(Controls { requests, has_terminal: request.terminal().is_some() });
    let (stdin, input) = match request.stdin() {
        Stdin::Stream => {
            let (ours, theirs) = tokio::io::duplex(PIECE);
            (Some(StdinWriter::new(ours)), Some(theirs))
        }
        Stdin::Empty | Stdin::Bytes(_) => (None, None),
    };
    let number = ExecId(NEXT.fetch_add(1, Ordering::Relaxed));
    let (handle, driver) = ExecHandle::new(number, request, stdin, control);
    let exec = Remote { client, sandbox, id: id.to_owned() };
    tokio::spawn(exec.signal(requested.clone()));
    tokio::spawn(run(exec, driver, input, requested));
    handle
}

/// An exec on the server.
#[derive(Debug, Clone)]
struct Remote {
    client: Client,
    sandbox: SandboxId,
    id: String,
}

impl Remote {
    /// Sends signals that are requested, until the handle and the exec are gone. Another connection than that of the
    /// output has them, which may be cut or full.
    fn signal(&self, mut requested: watch::Receiver<Requests>) -> impl Future<Output = ()> + Send + use<> {
        let this = self.clone();
        async move {
            let mut sent = Requests::default();
            loop {
                let now = *requested.borrow_and_update();
                if now.kill && !sent.kill {
                    this.send_signal(Signal::Kill, None).await;
                    return;
                }
                if let Some(grace) = now.cancel.filter(|_| now.cancel != sent.cancel) {
                    this.send_signal(Signal::Term, Some(grace)).await;
                }
                sent = now;
                if requested.changed().await.is_err() {
                    return;
                }
            }
        }
    }

    async fn send_signal(&self, signal: Signal, grace: Option<Duration>) {
        let path = format!("/v1/sandboxes/{}/execs/{}/signal", encoded(self.sandbox.as_str()), encoded(&self.id));
        let (begun, mut pause) = (Instant::now(), MIN_PAUSE);
        loop {
            let body = SignalExec { signal, grace };
            match self.client.call_unanswered(Method::POST, &path, &body).await {
                Err(error) if is_passing(&error) && begun.elapsed() < RECONNECT_TIME => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                // An exec that has ended needs no signal.
                _ => return,
            }
        }
    }

    /// Attaches at an offset, again and again for some time.
    async fn attach(&self, offset: u64) -> Result<(Sending, Receiving)> {
        let begun = Instant::now();
        let mut pause = MIN_PAUSE;
        loop {
            match self.client.attach(self.sandbox.as_str(), &self.id, offset).await {
                Ok(attachment) => return Ok(attachment.split()),
                Err(error) if is_passing(&error) && begun.elapsed() < RECONNECT_TIME => tokio::time::sleep(pause).await,
                Err(error) => return Err(error),
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}

/// Returns true for an error that may pass: the server is out of reach, or its rate or number of requests is used up.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::ResourceExhausted)
}

/// Publishes the output until the exit.
async fn run(exec: Remote, driver: ExecDriver, mut input: Option<DuplexStream>, requested: watch::Receiver<Requests>) {
    let mut offset = 0;
    let mut is_first = true;
    let outcome = loop {
        let (sending, mut receiving) = match exec.attach(offset).await {
            Ok(parts) => parts,
            // Its sandbox was closed, and the exec with it.
            Err(error) if error.kind() == ErrorKind::NotFound => break Err(Error::closed("run").with_source(error)),
            Err(error) => {
                // Nothing follows it any more.
                exec.send_signal(Signal::Kill, None).await;
                break Err(error);
            }
        };
        // Input that was on the way may be lost: the program's input ends instead of having a gap.
        let source = input.take().filter(|_| is_first);
        let (eof, wants_eof) = mpsc::channel(1);
        if !is_first {
            let _ = eof.try_send(());
        }
        is_first = false;
        let sender = tokio::spawn(send(sending, source, wants_eof, requested.clone()));
        let event = loop {
            match receiving.next().await {
                Ok(Event::Output(stream, data)) => driver.publisher().publish(stream, data),
                Ok(Event::Lost(bytes)) => driver.publisher().lose(1, bytes),
                Ok(Event::Exit(exit)) => break Some(Ok(exit)),
                Err(error) if error.kind() == ErrorKind::Unavailable && error.operation() == "attach" => break None,
                Err(error) => break Some(Err(error)),
            }
        };
        offset = receiving.offset();
        sender.abort();
        drop(eof);
        if let Some(outcome) = event {
            break outcome;
        }
    };
    finish(driver, outcome);
}

fn finish(driver: ExecDriver, outcome: Result<Exit>) {
    if let Ok(exit) = &outcome {
        // Output that the server dropped at the request's limit.
        let missing = exit.usage.output_bytes.saturating_sub(driver.publisher().bytes_seen());
        driver.publisher().count_dropped(missing);
    }
    driver.finish(outcome);
}

/// Sends input and sizes of the terminal until the connection is cut. A program that does not read its input does not
/// stop its output.
async fn send(
    mut sending: Sending,
    mut input: Option<DuplexStream>,
    mut wants_eof: mpsc::Receiver<()>,
    mut requested: watch::Receiver<Requests>,
) {
    let (mut piece, mut size, mut is_watched) = (BytesMut::new(), None, true);
    loop {
        let message = tokio::select! {
            count = read(&mut input, &mut piece), if input.is_some() => match count {
                Ok(count) if count > 0 => Input::Bytes(piece.split().freeze()),
                _ => {
                    input = None;
                    Input::Control(Control::Eof)
                }
            },
            Some(()) = wants_eof.recv() => Input::Control(Control::Eof),
            changed = requested.changed(), if is_watched => {
                is_watched = changed.is_ok();
                let wanted = requested.borrow_and_update().size;
                match wanted.filter(|_| wanted != size) {
                    Some(TerminalSize { rows, columns }) => {
                        size = wanted;
                        Input::Control(Control::Resize { rows, columns })
                    }
                    None => continue,
                }
            }
            else => return,
        };
        if sending.send(message).await.is_err() {
            return;
        }
    }
}

async fn read(input: &mut Option<DuplexStream>, piece: &mut BytesMut) -> io::Result<usize> {
    match input {
        Some(input) => {
            piece.reserve(PIECE);
            input.take(PIECE as u64).read_buf(piece).await
        }
        None => std::future::pending().await,
    }
}

//! One run through the server: converts its frames to an [`ExecHandle`], and the handle's control requests to frames.
//!
//! One task does both. Its writes cannot block for long, because the server always reads. So the task always returns to
//! reading, and neither side can block the other.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use cofferdam_contract::{
    Error, ErrorData, ExecControl, ExecDriver, ExecHandle, ExecId, ExecRequest, Exit, Posture, Result, SandboxId, Spec,
    Stdin, StdinWriter, TerminalSize,
};
use cofferdam_linux::named::Directory;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};

use super::connect::{ConnectRequest, REQUESTS};
use crate::directories;
use crate::error;
use crate::frame::{Frames, encode};
use crate::message::{PIECE, RunRequest, STDIN_WINDOW, ToClient, ToServer};

/// The control requests of the handle. A later request of one kind replaces an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControlRequests {
    pub cancel: Option<Duration>,
    pub kill: bool,
    pub size: Option<TerminalSize>,
}

/// The outcome of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    NotYet,
    /// The server closed the sandbox, or reports why it could not.
    Closed(Option<ErrorData>),
    /// The connection broke before the close.
    Lost,
}

/// A run that has begun.
pub struct Begun {
    pub handle: ExecHandle,
    pub sandbox: SandboxId,
    pub posture: Posture,
    pub control: Arc<watch::Sender<ControlRequests>>,
    pub connects: mpsc::Sender<ConnectRequest>,
    pub outcome: watch::Receiver<Outcome>,
}

struct Control {
    requests: Arc<watch::Sender<ControlRequests>>,
    has_terminal: bool,
}

impl ExecControl for Control {
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

/// Requests a run with the directories of its spec, and returns when it has begun. Dropping the future cancels the
/// request.
pub async fn begin(stream: StdStream, spec: &Spec, held: &[Directory], request: ExecRequest) -> Result<Begun> {
    let parts = RunRequest::encode(spec, request.clone())?;
    let lost = |_: io::Error| error::lost("start");
    stream.set_nonblocking(true).map_err(lost)?;
    let (reader, mut writer) = UnixStream::from_std(stream).map_err(lost)?.into_split();
    let mut frames = Frames::new(reader);
    for (number, part) in parts.iter().enumerate() {
        let frame = encode(part).map_err(lost)?;
        let held = if number == 0 { held } else { &[] };
        let sent = directories::send(writer.as_ref(), &frame, held).await.map_err(lost)?;
        writer.write_all(&frame[sent..]).await.map_err(lost)?;
    }
    let accepted = match frames.next().await.map_err(lost)? {
        Some(ToClient::Accepted(accepted)) => accepted,
        Some(ToClient::Failed(error)) => return Err(error.into()),
        Some(_) => return Err(error::invalid_message("start")),
        None => return Err(error::lost("start")),
    };
    let posture = accepted.posture().ok_or_else(|| error::invalid_message("start"))?;
    let (requests, requested) = watch::channel(ControlRequests::default());
    let requests = Arc::new(requests);
    let control = Arc::new(Control { requests: Arc::clone(&requests), has_terminal: request.terminal().is_some() });
    let (stdin, input) = match request.stdin() {
        Stdin::Stream => {
            let (ours, theirs) = tokio::io::duplex(PIECE);
            (Some(StdinWriter::new(ours)), Some(theirs))
        }
        Stdin::Empty | Stdin::Bytes(_) => (None, None),
    };
    let (handle, driver) = ExecHandle::new(ExecId(accepted.exec), &request, stdin, control);
    let (connects, connect_requests) = mpsc::channel(REQUESTS);
    let (report, outcome) = watch::channel(Outcome::NotYet);
    let run = Run {
        frames,
        writer,
        requested,
        connect_requests,
        sent: ControlRequests::default(),
        input,
        window: STDIN_WINDOW,
        driver: Some(driver),
    };
    tokio::spawn(async move {
        let outcome = run.drive().await;
        report.send_replace(outcome);
    });
    Ok(Begun { handle, sandbox: accepted.sandbox, posture, control: requests, connects, outcome })
}

struct Run {
    frames: Frames<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    requested: watch::Receiver<ControlRequests>,
    connect_requests: mpsc::Receiver<ConnectRequest>,
    /// The control requests that were sent.
    sent: ControlRequests,
    /// The source of the program's input, until either side closes it.
    input: Option<DuplexStream>,
    /// Number of input pieces that may be sent before the program reads some.
    window: usize,
    /// The driver of the handle, until the exec has ended.
    driver: Option<ExecDriver>,
}

impl Run {
    async fn drive(mut self) -> Outcome {
        let mut piece = BytesMut::new();
        let mut connected = true;
        loop {
            let done = tokio::select! {
                message = self.frames.next() => match message {
                    Ok(Some(message)) => self.handle(message),
                    Ok(None) | Err(_) => Some(Outcome::Lost),
                },
                changed = self.requested.changed(), if connected => {
                    connected = changed.is_ok();
                    self.send_control().await
                }
                Some(request) = self.connect_requests.recv() => self.send_connect(request).await,
                count = read(&mut self.input, &mut piece), if self.input.is_some() && self.window > 0 => {
                    self.send_input(count, &mut piece).await
                }
            };
            if let Some(outcome) = done {
                if let Some(driver) = self.driver.take() {
                    driver.finish(Err(error::lost("run")));
                }
                return outcome;
            }
        }
    }

    /// Handles a message of the server. Returns the outcome, if the message was the last.
    fn handle(&mut self, message: ToClient) -> Option<Outcome> {
        match (message, &self.driver) {
            (ToClient::Output { stream, data }, Some(driver)) => driver.publisher().publish(stream, data),
            (ToClient::Lost { chunks, bytes }, Some(driver)) => driver.publisher().lose(chunks, bytes),
            (ToClient::StdinTaken, _) => self.window = (self.window + 1).min(STDIN_WINDOW),
            (ToClient::StdinClosed, _) => self.input = None,
            (ToClient::Exit(exit), Some(_)) => self.finish(Ok(exit)),
            (ToClient::Failed(error), Some(_)) => self.finish(Err(error.into())),
            (ToClient::Closed(error), None) => return Some(Outcome::Closed(error)),
            _ => return Some(Outcome::Lost),
        }
        None
    }

    fn finish(&mut self, outcome: Result<Exit>) {
        let Some(driver) = self.driver.take() else { return };
        if let Ok(exit) = &outcome {
            // Output that the server's side dropped at the request's limit.
            let missing = exit.usage.output_bytes.saturating_sub(driver.publisher().bytes_seen());
            driver.publisher().count_dropped(missing);
        }
        self.input = None;
        driver.finish(outcome);
    }

    async fn send_control(&mut self) -> Option<Outcome> {
        let requests = *self.requested.borrow_and_update();
        let mut messages = Vec::new();
        if let Some(size) = requests.size.filter(|_| requests.size != self.sent.size) {
            messages.push(ToServer::Resize(size));
        }
        if let Some(grace) = requests.cancel.filter(|_| requests.cancel != self.sent.cancel) {
            messages.push(ToServer::Cancel { grace });
        }
        if requests.kill && !self.sent.kill {
            messages.push(ToServer::Kill);
        }
        self.sent = requests;
        for message in messages {
            self.send(&message).await;
        }
        None
    }

    async fn send_input(&mut self, count: io::Result<usize>, piece: &mut BytesMut) -> Option<Outcome> {
        match count {
            Ok(count) if count > 0 => {
                self.window -= 1;
                self.send(&ToServer::Stdin(piece.split().freeze())).await;
            }
            _ => {
                self.input = None;
                self.send(&ToServer::StdinEnd).await;
            }
        }
        None
    }

    async fn send_connect(&mut self, ConnectRequest { port, socket }: ConnectRequest) -> Option<Outcome> {
        if let Ok(frame) = encode(&ToServer::Connect { port })
            && let Ok(sent) = directories::send(self.writer.as_ref(), &frame, &[socket]).await
        {
            let _ = self.writer.write_all(&frame[sent..]).await;
        }
        None
    }

    /// Sends a message. A closed connection is detected by the reader, after the server's last messages.
    async fn send(&mut self, message: &ToServer) {
        if let Ok(frame) = encode(message) {
            let _ = self.writer.write_all(&frame).await;
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

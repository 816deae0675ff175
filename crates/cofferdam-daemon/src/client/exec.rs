//! One run through the daemon: from its frames to an [`ExecHandle`], and from the handle's wishes to frames.
//!
//! One task does both. Its writes cannot block for long, because the daemon always reads; so the task always comes back to
//! read, and neither side can hold up the other.

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
use tokio::sync::watch;

use crate::directories;
use crate::error;
use crate::frame::{Frames, encode};
use crate::message::{Order, PIECE, STDIN_WINDOW, ToClient, ToServer};

/// What the handle's holder wants. A later wish of one kind takes the place of an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    pub cancel: Option<Duration>,
    pub kill: bool,
    pub size: Option<TerminalSize>,
}

/// What became of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    NotYet,
    /// The daemon closed it, or says why it could not.
    Closed(Option<ErrorData>),
    /// The connection broke first.
    Lost,
}

/// A run that has begun.
pub struct Begun {
    pub handle: ExecHandle,
    pub sandbox: SandboxId,
    pub posture: Posture,
    pub wishes: Arc<watch::Sender<Wishes>>,
    pub ending: watch::Receiver<Ending>,
}

struct Control {
    wishes: Arc<watch::Sender<Wishes>>,
    has_terminal: bool,
}

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        self.wishes.send_modify(|wishes| wishes.cancel = Some(grace));
    }

    fn kill(&self) {
        self.wishes.send_modify(|wishes| wishes.kill = true);
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.has_terminal {
            return Err(Error::unsupported("resize", "the exec has no terminal"));
        }
        self.wishes.send_modify(|wishes| wishes.size = Some(size));
        Ok(())
    }
}

/// Orders a run with the directories that its spec names, and returns when it has begun. Dropping the future gives it up.
pub async fn begin(stream: StdStream, spec: &Spec, held: &[Directory], request: ExecRequest) -> Result<Begun> {
    let parts = Order::encode(spec, request.clone())?;
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
        Some(_) => return Err(error::nonsense("start")),
        None => return Err(error::lost("start")),
    };
    let posture = accepted.posture().ok_or_else(|| error::nonsense("start"))?;
    let (wishes, wanted) = watch::channel(Wishes::default());
    let wishes = Arc::new(wishes);
    let control = Arc::new(Control { wishes: Arc::clone(&wishes), has_terminal: request.terminal().is_some() });
    let (stdin, input) = match request.stdin() {
        Stdin::Stream => {
            let (ours, theirs) = tokio::io::duplex(PIECE);
            (Some(StdinWriter::new(ours)), Some(theirs))
        }
        Stdin::Empty | Stdin::Bytes(_) => (None, None),
    };
    let (handle, driver) = ExecHandle::new(ExecId(accepted.exec), &request, stdin, control);
    let (told, ending) = watch::channel(Ending::NotYet);
    let run =
        Run { frames, writer, wanted, wished: Wishes::default(), input, window: STDIN_WINDOW, driver: Some(driver) };
    tokio::spawn(async move {
        let ending = run.drive().await;
        told.send_replace(ending);
    });
    Ok(Begun { handle, sandbox: accepted.sandbox, posture, wishes, ending })
}

struct Run {
    frames: Frames<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    wanted: watch::Receiver<Wishes>,
    /// What was passed on already.
    wished: Wishes,
    /// What is to go to the program's input, until that is closed on either side.
    input: Option<DuplexStream>,
    /// Pieces of input that may be sent before the program takes some.
    window: usize,
    /// Until the exec has ended.
    driver: Option<ExecDriver>,
}

impl Run {
    async fn drive(mut self) -> Ending {
        let mut piece = BytesMut::new();
        let mut wishing = true;
        loop {
            let done = tokio::select! {
                message = self.frames.next() => match message {
                    Ok(Some(message)) => self.hear(message),
                    Ok(None) | Err(_) => Some(Ending::Lost),
                },
                changed = self.wanted.changed(), if wishing => {
                    wishing = changed.is_ok();
                    self.pass_wishes().await
                }
                count = read(&mut self.input, &mut piece), if self.input.is_some() && self.window > 0 => {
                    self.pass_input(count, &mut piece).await
                }
            };
            if let Some(ending) = done {
                if let Some(driver) = self.driver.take() {
                    driver.finish(Err(error::lost("run")));
                }
                return ending;
            }
        }
    }

    /// Takes in what the daemon says; gives the end, if that was it.
    fn hear(&mut self, message: ToClient) -> Option<Ending> {
        match (message, &self.driver) {
            (ToClient::Output { stream, data }, Some(driver)) => driver.publisher().publish(stream, data),
            (ToClient::Lost { chunks, bytes }, Some(driver)) => driver.publisher().lose(chunks, bytes),
            (ToClient::StdinTaken, _) => self.window = (self.window + 1).min(STDIN_WINDOW),
            (ToClient::StdinClosed, _) => self.input = None,
            (ToClient::Exit(exit), Some(_)) => self.finish(Ok(exit)),
            (ToClient::Failed(error), Some(_)) => self.finish(Err(error.into())),
            (ToClient::Closed(error), None) => return Some(Ending::Closed(error)),
            _ => return Some(Ending::Lost),
        }
        None
    }

    fn finish(&mut self, outcome: Result<Exit>) {
        let Some(driver) = self.driver.take() else { return };
        if let Ok(exit) = &outcome {
            // What the daemon's side dropped at the request's maximum.
            let missing = exit.usage.output_bytes.saturating_sub(driver.publisher().bytes_seen());
            driver.publisher().count_dropped(missing);
        }
        self.input = None;
        driver.finish(outcome);
    }

    async fn pass_wishes(&mut self) -> Option<Ending> {
        let wishes = *self.wanted.borrow_and_update();
        let mut messages = Vec::new();
        if let Some(size) = wishes.size.filter(|_| wishes.size != self.wished.size) {
            messages.push(ToServer::Resize(size));
        }
        if let Some(grace) = wishes.cancel.filter(|_| wishes.cancel != self.wished.cancel) {
            messages.push(ToServer::Cancel { grace });
        }
        if wishes.kill && !self.wished.kill {
            messages.push(ToServer::Kill);
        }
        self.wished = wishes;
        for message in messages {
            self.say(&message).await;
        }
        None
    }

    async fn pass_input(&mut self, count: io::Result<usize>, piece: &mut BytesMut) -> Option<Ending> {
        match count {
            Ok(count) if count > 0 => {
                self.window -= 1;
                self.say(&ToServer::Stdin(piece.split().freeze())).await;
            }
            _ => {
                self.input = None;
                self.say(&ToServer::StdinEnd).await;
            }
        }
        None
    }

    /// Says something. That the daemon has gone is seen where it is read from, after what it said last.
    async fn say(&mut self, message: &ToServer) {
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

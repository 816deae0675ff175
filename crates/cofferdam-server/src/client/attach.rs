//! The client's end of an attachment to an exec.

use bytes::Bytes;
use cofferdam_contract::{Connection, Error, ErrorKind, Exit, OutputStream, Result};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as Broken, Message};

use super::tls_errors::tls_error;
use super::{Client, foreign};
use crate::rest::views::ExecEvent;
use crate::rest::{Control, STDERR, STDOUT};

/// An attachment to an exec.
pub struct Attachment {
    sending: Sending,
    receiving: Receiving,
}

/// The half of an attachment that sends input.
pub struct Sending(SplitSink<WebSocketStream<Connection>, Message>);

/// The half of an attachment that receives output.
pub struct Receiving {
    socket: SplitStream<WebSocketStream<Connection>>,
    /// The offset after the output that was received.
    offset: u64,
}

/// An event of an attachment.
#[derive(Debug)]
pub enum Event {
    /// Output.
    Output(OutputStream, Bytes),
    /// Bytes of output that the server no longer has.
    Lost(u64),
    /// The end.
    Exit(Exit),
}

/// A message to the exec.
#[derive(Debug)]
pub enum Input {
    /// Bytes of standard input.
    Bytes(Bytes),
    /// A control document.
    Control(Control),
}

impl Client {
    /// Attaches to an exec from an offset of its output.
    ///
    /// # Errors
    /// Those of [`Client::send`].
    pub async fn attach(&self, sandbox: &str, exec: &str, offset: u64) -> Result<Attachment> {
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/attach?offset={offset}");
        let socket = self.websocket(&path).await?;
        let (sending, socket) = socket.split();
        Ok(Attachment { sending: Sending(sending), receiving: Receiving { socket, offset } })
    }

    /// Opens a WebSocket.
    pub(super) async fn websocket(&self, path: &str) -> Result<WebSocketStream<Connection>> {
        let url = format!("ws://{}{path}", self.endpoint.authority());
        let mut request = url.into_client_request().map_err(|error| {
            Error::invalid("attach", "the sandbox or exec cannot be part of an address").with_source(error)
        })?;
        request.headers_mut().extend(self.own_headers());
        let stream = tokio::time::timeout(super::CONNECT_TIME, self.endpoint.connect());
        let stream = stream.await.map_err(|_| self.unreachable("the server did not answer in time"))??;
        let upgraded = tokio::time::timeout(super::CONNECT_TIME, tokio_tungstenite::client_async(request, stream));
        match upgraded.await.map_err(|_| self.unreachable("the server did not answer in time"))? {
            Ok((socket, _)) => Ok(socket),
            Err(Broken::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                Err(match serde_json::from_slice::<crate::rest::problem::Problem>(body) {
                    Ok(problem) => problem.into_error(),
                    Err(_) => foreign(&format!("the server answered {}", response.status())),
                })
            }
            Err(error) => Err(match tls_error(&error) {
                Some(known) => known.with_context("server", self.endpoint.to_string()).with_source(error),
                None => self.unreachable("cannot attach").with_source(error),
            }),
        }
    }
}

impl Attachment {
    /// Returns the halves, neither of which waits for the other.
    pub fn split(self) -> (Sending, Receiving) {
        (self.sending, self.receiving)
    }

    /// Returns the offset from which another attachment continues.
    pub fn offset(&self) -> u64 {
        self.receiving.offset
    }

    /// Waits for the next event. Cancel safe.
    ///
    /// # Errors
    /// Those of [`Receiving::next`].
    pub async fn next(&mut self) -> Result<Event> {
        self.receiving.next().await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// - `Unavailable` if the connection is cut.
    pub async fn send(&mut self, input: Input) -> Result<()> {
        self.sending.send(input).await
    }
}

impl Receiving {
    /// Returns the offset from which another attachment continues.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Waits for the next event. Cancel safe.
    ///
    /// # Errors
    /// - `Unavailable` if the connection is cut. Another attachment can continue at [`Self::offset`].
    /// - The error that the server reports.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            // The server sends pings: without any message, the connection is cut.
            let message = tokio::time::timeout(super::SILENCE, self.socket.next()).await.unwrap_or(None);
            match message {
                Some(Ok(Message::Binary(data))) => {
                    let stream = match data.first() {
                        Some(&STDOUT) => OutputStream::Stdout,
                        Some(&STDERR) => OutputStream::Stderr,
                        _ => return Err(foreign("the server sent an unknown message")),
                    };
                    let data = data.slice(1..);
                    self.offset += data.len() as u64;
                    return Ok(Event::Output(stream, data));
                }
                Some(Ok(Message::Text(text))) => {
                    let event = serde_json::from_str(&text);
                    match event.map_err(|_| foreign("the server sent an unknown message"))? {
                        ExecEvent::Lost { bytes, offset } => {
                            self.offset = offset;
                            return Ok(Event::Lost(bytes));
                        }
                        ExecEvent::Exit { exit } => return Ok(Event::Exit(exit)),
                        ExecEvent::Error { error } => return Err(error.into_error()),
                        ExecEvent::Output { .. } => return Err(foreign("the server sent an unknown message")),
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    return Err(Error::new(ErrorKind::Unavailable, "attach", "the connection was cut")
                        .with_remedy("attach again; the exec still runs unless the server stopped"));
                }
                Some(Ok(_)) => {}
            }
        }
    }
}

impl Sending {
    /// Sends a message.
    ///
    /// # Errors
    /// - `Unavailable` if the connection is cut.
    pub async fn send(&mut self, input: Input) -> Result<()> {
        let message = match input {
            Input::Bytes(data) => Message::Binary(data),
            Input::Control(control) => Message::Text(serde_json::to_string(&control).unwrap_or_default().into()),
        };
        let cut = |error| Error::new(ErrorKind::Unavailable, "attach", "the connection was cut").with_source(error);
        self.0.send(message).await.map_err(cut)
    }
}
